# SPDX-License-Identifier: Apache-2.0
"""Tensors split over axes: a trainer with tensor=, context= and expert= against autograd, by names of dims and without.

usage: axes_test.py
"""

import copy
import unittest

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
import zoo
from batch_planner_test import Causal
from evaluate import sampled  # finds the package
from small_modules import Case, Images, Model, autograd, seeded, texts, token_loss
from torch.nn import functional

import penstock

RULES = {r"layers\.\d+\.up\.weight": ("mlp", None), r"layers\.\d+\.up\.bias": ("mlp",), r"layers\.\d+\.down\.weight": (None, "mlp")}


class Equal(Case):
    def test_gradients_and_steps_by_names_and_without(self):
        plans = [{"tensor": 2, "dims": True}, {"tensor": 2}, {"tensor": 2, "data": 2, "zero": 3, "dims": True}, {"expert": 2, "context": 2},
                 {"tensor": 3, "dims": True, "data": 2, "zero": 1}, {"tensor": 2, "schedule": "zb-h1", "recompute": True}]
        for plan in sampled(plans, 2):
            with self.subTest(plan):
                module, batches = seeded(Model, layers=2), [texts() for _ in range(2)]
                twin = copy.deepcopy(module)
                ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin))
                more = {**plan, "dims": penstock.dims(module, RULES)} if plan.get("dims") else plan
                step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=ours, microbatches=4, **more)
                self.assert_trains_alike(step, twin, theirs, batches)
                state = step.optimizer_state_dict()["state"]
                for number, kept in theirs.state_dict()["state"].items():
                    torch.testing.assert_close(state[number]["exp_avg"], kept["exp_avg"], rtol=1e-8, atol=1e-14)
                self.assertIn("along tensor: mlp" if plan.get("dims") else "chosen along", step.explain())
                values = {name: value.detach() + 1 for name, value in twin.state_dict().items()}
                step.load_state_dict(values)
                self.assert_alike(step.state_dict(), values, 1e-15)

    def test_micro_batches_and_windows(self):
        module, parts = seeded(Causal), [texts(2, 5), texts(3, 9), texts(1, 4)]
        step = penstock.trainer(module, parts[0], loss=token_loss, microbatches=1, tensor=2)
        losses = sum(functional.cross_entropy(module(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts)
        loss = losses / sum((y != -100).sum() for _, y in parts)
        loss.backward()
        found, gradients = step.gradients(penstock.MicroBatches(parts))
        self.assertAlmostEqual(found.item(), loss.item(), delta=1e-10)
        self.assert_alike(gradients, {name: p.grad for name, p in module.named_parameters()}, 1e-10)
        found = []
        for plan in ({}, {"tensor": 2, "window": 2}):
            module, batches = seeded(Causal), [texts(4, 6, ignored=False)] * 2
            step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=torch.optim.SGD(module.parameters(), 0.1), microbatches=2, **plan)
            losses = step(penstock.Window(batches)) if plan else torch.stack([step(batch) for batch in batches])
            found.append((losses, step.state_dict()))
        torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-10, atol=0)
        self.assert_alike(found[1][1], found[0][1], 1e-10)

    def test_buffers(self):
        images = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.randint(5, (4,))
        found = []
        for plan in ({}, {"tensor": 2}):
            module = seeded(Images)
            step = penstock.trainer(module, images, loss=functional.cross_entropy, optimizer=torch.optim.SGD(module.parameters(), 0.1), microbatches=2, **plan)
            step(images)
            found.append({name: value.double() for name, value in step.state_dict().items()})
        self.assert_alike(found[1], found[0], 1e-10)

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_modules_of_hugging_face(self):
        for name, along in (("gpt2", "heads, mlp, vocab"), ("llama", "heads, mlp, vocab")):
            with self.subTest(name):
                module, batch = zoo.make(name)
                module = zoo.without_dropout(module).double().train()
                expected = module(**batch).loss
                expected.backward()
                loss, theirs = expected.item(), {name: p.grad.clone() for name, p in module.named_parameters()}
                step = penstock.trainer(module, batch, microbatches=2, tensor=2, dims=penstock.dims(module))
                self.assertIn(f"along tensor: {along}", step.explain())
                found, gradients = step.gradients(batch)
                self.assertAlmostEqual(found.item(), loss, delta=1e-6)
                self.assert_alike(gradients, theirs, 1e-6)  # logits are taken to f32, and RMS norms


class Meshes(Case):
    def test_names_of_the_user(self):
        module, batch = seeded(Model, layers=2), texts()
        loss, theirs = autograd(module, batch)
        dims = penstock.dims(module, RULES)
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=2, mesh={"stages": 2, "model": 2}, axes={"model": "tensor", "stages": "pipe"}, dims=dims)
        self.assertEqual((step.plan.actors, step.plan.data, step.plan.tensor), (2, 1, 2))
        self.assertIn("along model: mlp", step.explain())
        found, gradients = step.gradients(batch)
        self.assertAlmostEqual(found.item(), loss, delta=1e-10)
        self.assert_alike(gradients, theirs, 1e-10)

    def test_refused(self):
        module, batch = seeded(Model, layers=2), texts()
        dims = penstock.dims(module, RULES)
        for more, expected in (({"mesh": {"modle": 2}, "axes": {"model": "tensor"}}, '(?s)there is no axis "modle".*did you mean "model"'),
                               ({"mesh": {"model": 2.5}, "axes": {"model": "tensor"}}, "a whole number of members"),
                               ({"axes": {"model": "tensr"}}, '(?s)there is no axis "tensr".*did you mean "tensor"'),
                               ({"axes": {"rows": "tensor", "columns": "tensor"}}, '(?s)"rows" and "columns" of axes are both "tensor".*name another'),
                               ({"axes": {"data": "tensor"}}, "data is the name of another axis"),
                               ({"mesh": {"model": 2, "tensor": 2}, "axes": {"model": "tensor"}}, "names the axis tensor twice"),
                               ({"mesh": {"data": 2}, "tensor": 2}, "mesh= and tensor=2 both say"),
                               ({"mesh": [2]}, "is not what mesh takes"), ({"axes": {"model": 1}}, "is not what axes takes"),
                               ({"mesh": {"model": 40}, "axes": {"model": "tensor"}, "dims": dims}, 'model=40: "mlp" has 32'),
                               ({"mesh": {"model": 2}, "axes": {"model": "tensor"}, "dims": dims, "layout": {"mlp": "tensor"}}, '(?s)there is no axis "tensor".*axes: .*model')):
            with self.subTest(more), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.trainer(module, batch, loss=token_loss, microbatches=4, **more)


class Dims(Case):
    def test_rules(self):
        module = seeded(Model, layers=1)
        found = penstock.dims(module, RULES)
        self.assertEqual(found, {"layers.0.up.weight": (("mlp", 1, 32), ("", 1, 0)), "layers.0.up.bias": (("mlp", 1, 32),),
                                 "layers.0.down.weight": (("", 1, 0), ("mlp", 1, 32))})
        self.assertEqual(penstock.dims(module, {r"layers\.0\.up\.bias": (("heads", 2, 4),)})["layers.0.up.bias"], (("heads", 2, 4),))

    def test_refused(self):
        module, batch = seeded(Model, layers=2), texts()
        for rules, expected in (({r".*\.upp\.weight": ("mlp", None)}, r'(?s)the rule ".*upp.*" fits no parameter.*embed.weight'),
                                ({"[": ("mlp",)}, "is no regular expression"),
                                ({r".*\.up\.weight": ("mlp",)}, r"\('mlp',\) are no names for the dims of layers.0.up.weight, which are \[32, 8\]"),
                                ({r".*\.up\.bias": "mlp"}, "are no names for the dims"),
                                ({r".*\.up\.bias": (("mlp", 5),)}, r"\('mlp', 5\) does not fit a dim of 32 of layers.0.up.bias"),
                                ({r".*\.up\.bias": (("mlp", 1.5),)}, "is no name of a dim"), ({r".*\.up\.bias": ("a,b",)}, "is no name of a dim")):
            with self.subTest(rules), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.dims(module, rules)
        with self.assertRaisesRegex(penstock.PenstockError, "Model has no config with num_attention_heads"):
            penstock.dims(module)
        dims = penstock.dims(module, RULES)
        for more, expected in (({"tensor": 0}, "tensor=0 is not what tensor takes"),
                               ({"context": 2, "dims": dims}, "(?s)context=2: nothing is split over axis context.*names of dims: mlp"),
                               ({"tensor": 40, "dims": dims}, r'tensor=40: "mlp" has 32 in layers.0.*fewer than members'),
                               ({"tensor": 2, "dims": dims, "layout": {"mlpp": "tensor"}}, '(?s)no dim of the module is named "mlpp".*did you mean "mlp"'),
                               ({"tensor": 2, "dims": dims, "layout": {"mlp": "tensr"}}, '(?s)there is no axis "tensr".*did you mean "tensor"'),
                               ({"tensor": 2, "layout": {"mlp": "tensor"}}, "(?s)no dim of the module has a name.*penstock.dims"),
                               ({"tensor": 2, "layout": ["mlp"]}, "is not what layout takes"), ({"tensor": 2, "dims": [1]}, "is not what dims takes"),
                               ({"tensor": 2, "dims": {"layers.0.upp.weight": ("mlp", None)}}, '(?s)no parameter "layers.0.upp.weight".*did you mean')):
            with self.subTest(more), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.trainer(module, batch, loss=token_loss, microbatches=4, **more)


if __name__ == "__main__":
    unittest.main()
