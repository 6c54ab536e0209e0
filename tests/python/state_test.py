# SPDX-License-Identifier: Apache-2.0
"""A trainer's state: views of the devices' memory, the optimiser's state in PyTorch's form, evaluation, scalars and the log.

usage: state_test.py
"""

import copy
import gc
import io
import tempfile
import unittest
import warnings

import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import Case, Images, Model, autograd, relative, seeded, texts, token_loss
from torch.nn import functional
from zoo import have

import penstock


def trained(module, batch, optimizer=None, **plan):
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1)
    return penstock.trainer(module, batch, loss=token_loss, optimizer=optimizer, **{"microbatches": 4, "dynamic": False, **plan})


class Views(Case):
    def test_a_view_shows_each_step_and_is_one_tensor(self):
        module, batch = seeded(Model, layers=2), texts()
        step = trained(module, batch)
        weight, part = step.parameter("layers.1.up.weight"), step.parameter("layers.1.up.weight")[0]
        self.assertIs(step.parameter("layers.1.up.weight"), weight)
        self.assertTrue(torch.equal(weight, module.layers[1].up.weight))
        address, before = weight.data_ptr(), weight.clone()
        step(batch)
        self.assertEqual(weight.data_ptr(), address)
        self.assertFalse(torch.equal(weight, before))
        self.assertTrue(torch.equal(part, weight[0]))
        self.assertTrue(torch.equal(weight, step.state_dict()["layers.1.up.weight"]))

    def test_what_is_written_is_what_the_next_step_reads(self):
        for name in ("layers.1.up.weight", "embed.weight"):  # the second is on two devices
            with self.subTest(name):
                module, batch = seeded(Model, layers=2), texts()
                step = trained(module, batch)
                weight = step.parameter(name)
                weight[1:3] *= 2
                with torch.no_grad():
                    module.get_parameter(name)[1:3] *= 2
                loss = token_loss(module(batch[0]), batch[1])
                step.load_state_dict({})  # the module's tensors may differ from now on
                torch.testing.assert_close(step.gradients(batch)[0].item(), loss.item(), rtol=1e-12, atol=1e-12)

    def test_a_view_follows_where_another_program_moves_the_state(self):
        module = seeded(Model, layers=2)
        step = trained(module, texts())
        names = list(step.exports.state)
        views = {name: step.parameter(name) for name in names}
        for batch in (texts(), texts(length=3), texts(batch=4)):
            step(batch)
            step.gradients(batch)
            state = step.state_dict()
            for name, view in views.items():
                self.assertTrue(torch.equal(view, state[name]), name)

    def test_a_view_outlives_its_trainer(self):
        module, batch = seeded(Model, layers=2), texts()
        step = trained(module, batch)
        step(batch)
        views, state = {name: step.parameter(name) for name in step.exports.state}, step.state_dict()
        del step
        gc.collect()
        for name, view in views.items():
            self.assertTrue(torch.equal(view, state[name]), name)

    def test_the_modules_own_state_dict_says_once_that_it_is_behind(self):
        module, batch = seeded(Model, layers=2), texts()
        step = trained(module, batch)

        def said(module=module):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module.state_dict()
            return [str(each.message) for each in caught]

        self.assertEqual(said(), [])
        step(batch)
        step.sync()
        self.assertEqual(said(), [])
        step(batch)
        module.load_state_dict(step.state_dict())
        self.assertEqual(said(), [])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(texts(length=3))  # which is exported anew
            step.evaluate(batch)
            step.state_dict()
        kept = io.BytesIO()
        torch.save(module, kept)
        kept.seek(0)
        for other in (copy.deepcopy(module), torch.load(kept, weights_only=False)):
            self.assertEqual(said(other), [])
        behind = ["Model.state_dict() has not the values of its penstock trainer, which has done 3 steps: step.sync() gives the module these, "
                  "step.state_dict() has them"]
        self.assertEqual((said(), said()), (behind, []))
        step = None
        gc.collect()
        self.assertEqual(len(module._state_dict_pre_hooks), 0)

    def test_pieces_are_put_together_as_a_copy(self):
        module, batch = seeded(Model, layers=2), texts()
        step = trained(module, batch, data=2, zero=3)
        weight = step.parameter("layers.1.up.weight")
        self.assertTrue(torch.equal(weight, module.layers[1].up.weight))
        step(batch)
        self.assertTrue(torch.equal(weight, module.layers[1].up.weight))
        with self.assertRaisesRegex(penstock.PenstockError, 'no loaded program has the state "layers.9"'):
            step.parameter("layers.9")


class OptimiserState(Case):
    """Three steps here or in PyTorch, and three more in the other."""

    MAKE = {
        "AdamW": lambda m: torch.optim.AdamW([{"params": m.layers.parameters(), "lr": 3e-3, "weight_decay": 0.1}, {"params": m.embed.parameters()}], lr=1e-2),
        "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
        "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    }

    def in_pytorch(self, module, optimizer, batches):
        for tokens, targets in batches:
            optimizer.zero_grad()
            token_loss(module(tokens), targets).backward()
            optimizer.step()

    def test_from_and_to_pytorch(self):
        batches = [texts() for _ in range(6)]
        for name, make in self.MAKE.items():
            with self.subTest(name):
                twin = seeded(Model, layers=2)
                theirs = make(twin)
                self.in_pytorch(twin, theirs, batches[:3])
                halfway = {key: value.clone() for key, value in twin.state_dict().items()}
                state = theirs.state_dict()
                kept = {i: {key: value.clone() for key, value in entry.items() if value is not None} for i, entry in state["state"].items()}
                self.in_pytorch(twin, theirs, batches[3:])

                module = seeded(Model, layers=2)
                step = trained(module, batches[0], make(module))
                step.load_state_dict(halfway)
                step.load_optimizer_state_dict({**state, "state": kept})
                given = step.optimizer_state_dict()
                self.assertEqual(given["param_groups"], state["param_groups"])
                for i, entry in kept.items():
                    self.assertEqual(given["state"].get(i, {}).keys(), entry.keys())
                    for key, value in entry.items():
                        self.assertLess(relative(given["state"][i][key], value), 1e-12)
                for batch in batches[3:]:
                    step(batch)
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-6)

                back = seeded(Model, layers=2)
                ours = make(back)
                other = trained(back, batches[0], ours)
                for batch in batches[:3]:
                    other(batch)
                back.load_state_dict(other.state_dict())
                ours.load_state_dict(other.optimizer_state_dict())
                self.in_pytorch(back, ours, batches[3:])
                self.assert_alike(back.state_dict(), twin.state_dict(), 1e-6)

    def test_refusals(self):
        module, batch = seeded(Model, layers=2), texts()
        step = trained(module, batch, torch.optim.AdamW(module.parameters(), lr=1e-2))
        step(batch)
        state = step.optimizer_state_dict()
        groups = state["param_groups"][0]

        def refused(text, other):
            with self.assertRaisesRegex(penstock.PenstockError, text):
                step.load_optimizer_state_dict(other)
        refused(r"state has weight_decay = 0.5, the trainer's program 0.01", {**state, "param_groups": [{**groups, "weight_decay": 0.5}]})
        refused(r"is of \[3\] parameters, group by group, the trainer's optimizer has \[", {**state, "param_groups": [{**groups, "params": [0, 1, 2]}]})
        refused("have done different numbers of steps", {**state, "state": {**state["state"], 0: {**state["state"][0], "step": torch.tensor(7.0)}}})
        refused('has no "exp_avg_sq" of "embed.weight"', {**state, "state": {**state["state"], 0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(19, 8)}}})
        with self.assertRaisesRegex(penstock.PenstockError, "has no optimizer"):
            penstock.trainer(module, batch, loss=token_loss, microbatches=4, dynamic=False).optimizer_state_dict()


class Evaluation(Case):
    def test_loss_and_outputs_are_those_of_evaluation_mode(self):
        plans = ({"schedule": "1f1b"}, {"schedule": "zb-v"}, *({"data": 2, "zero": zero} for zero in (0, 1, 3)))
        for plan in sampled(plans, 2):
            with self.subTest(**plan):
                module, batch = seeded(Model, dropout=0.3), texts()
                step = trained(module, batch, actors=2, **plan)
                before = step.state_dict()
                found = step.evaluate(batch)
                self.assertTrue(module.training)
                module.eval()
                logits = module(batch[0])
                module.train()
                self.assertLess(relative(found["output"], logits), 1e-12)
                torch.testing.assert_close(found["loss"].item(), token_loss(logits, batch[1]).item(), rtol=1e-12, atol=1e-12)
                for name, value in step.state_dict().items():
                    self.assertTrue(torch.equal(value, before[name]), name)
                step(batch)
                module.load_state_dict(step.state_dict())
                module.eval()
                torch.testing.assert_close(step.evaluate(batch)["loss"].item(), token_loss(module(batch[0]), batch[1]).item(), rtol=1e-12, atol=1e-12)

    def test_batch_norms_use_their_statistics(self):
        module = seeded(Images, dtype=torch.float64)
        batch = torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.randint(5, (16,))
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), microbatches=4,
                                split=["layers.3"], dynamic=False)
        step(batch)
        before = step.state_dict()
        found = step.evaluate(batch)
        module.load_state_dict(before)
        module.eval()
        self.assertLess(relative(found["output"], module(batch[0])), 1e-12)
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in step.state_dict().items()))

    def test_outputs_by_name(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

            def forward(self, x, labels):
                y = self.second(self.first(x).relu())
                masked = y.masked_fill(torch.arange(3) == 1, float("-inf"))
                return {"loss": functional.cross_entropy(y, labels), "logits": masked, "classes": y.argmax(-1), "norm": y.norm()}
        torch.manual_seed(0)
        module, batch = Named().double(), {"x": torch.randn(8, 4, dtype=torch.float64), "labels": torch.randint(3, (8,))}
        found = penstock.trainer(module, batch, microbatches=4, dynamic=False).evaluate(batch)
        theirs = module(**batch)
        self.assertEqual(found.keys(), {"loss", "logits", "classes"})
        torch.testing.assert_close(found["loss"].item(), theirs["loss"].item(), rtol=1e-12, atol=1e-12)
        self.assertTrue(torch.equal(found["classes"], theirs["classes"]))
        self.assertTrue(torch.allclose(found["logits"], theirs["logits"], rtol=1e-12))


class Watching(Case):
    def test_the_log(self):
        with self.assertLogs("penstock", "INFO") as kept:
            trained(seeded(Model, layers=2), texts())
        self.assertRegex("\n".join(kept.output), r"INFO:penstock:exported Model in [\d.]+ s\n(.*\n)*INFO:penstock:program for training of tokens \[8, 6\], target \[8, 6\] in")


class Splits(Case):
    def test_split_specs_of_pytorch(self):
        from torch.distributed.pipelining import SplitPoint
        module, batch = seeded(Model), texts()
        for spec, begins in (({"layers.1": SplitPoint.BEGINNING}, ["layers.1"]), ({"layers.1": SplitPoint.END}, ["layers.2"]),
                             ({"layers.3": SplitPoint.END}, ["head"]), ({"layers.1.up": SplitPoint.END}, ["layers.1.down"])):
            with self.subTest(spec):
                step = penstock.trainer(module, batch, loss=token_loss, split=spec, microbatches=4, dynamic=False)
                self.assertEqual(step.plan.split, begins)
                self.assertIn(f"1 at {begins[0]}", step.explain())
        three = {"layers.3": SplitPoint.BEGINNING, "layers.0": SplitPoint.END}
        self.assertEqual(penstock.trainer(module, batch, loss=token_loss, split=three, actors=3, microbatches=4, dynamic=False).plan.split,
                         ["layers.1", "layers.3"])
        for text, spec in (('no op comes from the module "layers.7", where', {"layers.7": SplitPoint.END}),
                           ('nothing runs behind the module "head"', {"head": SplitPoint.END}), ("split says 3 of", {"layers.1": 3})):
            with self.assertRaisesRegex(penstock.PenstockError, text):
                penstock.trainer(module, batch, loss=token_loss, split=spec, microbatches=4, dynamic=False)


class Malformed(Case):
    """States come from files of others."""

    def test_states_that_are_none_are_refused_and_change_nothing(self):
        module, batch = seeded(Model), texts()
        step = trained(module, batch, torch.optim.AdamW(module.parameters()))
        step(batch)
        good, before = step.optimizer_state_dict(), step.state_dict()

        def of_first(**changed):
            return {**good, "state": {**good["state"], 0: {**good["state"][0], **changed}}}
        for state in ({}, [], None, {"state": {}}, {"state": {}, "param_groups": []}, {**good, "state": 3}, {**good, "state": {0: 3}},
                      {**good, "param_groups": [3]}, {**good, "param_groups": [{}]}, {**good, "param_groups": [{**good["param_groups"][0], "lr": "x"}]},
                      of_first(step="x"), of_first(step=[]), of_first(step=torch.ones(2)), of_first(exp_avg="x"), of_first(exp_avg=3), of_first(exp_avg=torch.ones(3)),
                      of_first(exp_avg=torch.ones(19, 8, device="meta"))):
            with self.subTest(repr(state)[:80]), self.assertRaises(penstock.PenstockError):
                step.load_optimizer_state_dict(state)
        name = "layers.1.up.weight"
        for state in ([], None, {name: 1}, {name: "x"}, {"x": torch.ones(1)}, {3: torch.ones(1)}, {name: torch.ones(3)}, {name: before[name].to("meta")},
                      {name: before[name].to(torch.complex64)}, {name: before[name].to_sparse()}):
            with self.subTest(repr(state)[:80]), self.assertRaises(penstock.PenstockError):
                step.load_state_dict(state)
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in step.state_dict().items()))
        again = step.optimizer_state_dict()
        self.assertEqual(again["param_groups"], good["param_groups"])
        self.assertTrue(all(torch.equal(again["state"][i]["exp_avg"], good["state"][i]["exp_avg"]) for i in good["state"]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
