# SPDX-License-Identifier: Apache-2.0
"""Planned steps: what planners make of modules computes what autograd does; what they are drawn, saved and measured as; what is refused.

usage: planned_test.py
"""

import random
import re
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
import zoo
from evaluate import drawn_seed  # finds the package
from small_modules import Model, token_loss

import penstock

SEED = drawn_seed()
CLUSTER = Path(__file__).resolve().parents[2] / "examples" / "clusters" / "h100-64.toml"


def drawn(samples=8, layers=4):
    torch.manual_seed(0)
    return Model(layers=layers).double(), (torch.randint(19, (samples, 5)), torch.randint(19, (samples, 5)))


def planned(module, batch, **arguments):
    return penstock.plan(module, batch, loss=token_loss, **{"devices": 2, "seconds": 0.1, "microbatches": 4, **arguments})


class Plans(unittest.TestCase):
    def test_gradients(self):
        """Under plans of every planner, by autograd; three of them, drawn by PENSTOCK_SEED."""
        module, batch = drawn()
        names = [name for name in penstock.planners() if name not in ("best", "degrees", "exact")]  # exact takes 12 nodes at most
        for planner in ["best", "degrees", *random.Random(SEED).sample(names, 1)]:
            with self.subTest(planner, seed=SEED):
                plan = planned(module, batch, planner=planner, replicas=planner == "degrees")
                self.assertLess(penstock.check(module, batch, loss=token_loss, plan=plan).gradients, 1e-10)

    def test_shares(self):
        """Equal groups of devices that hold parameters in shares, and compute forwards again."""
        module, batch = drawn()
        for only in ("data=2,pipe=1,zero=3,recompute=0", "data=2,pipe=2,zero=1,recompute=1"):
            with self.subTest(only):
                plan = planned(module, batch, planner="degrees", devices=4 if "pipe=2" in only else 2, only=only)
                self.assertLess(penstock.check(module, batch, loss=token_loss, plan=plan).gradients, 1e-10)
                optimizer = torch.optim.Adam(module.parameters())
                self.assertLess(penstock.check(module, batch, loss=token_loss, plan=plan, optimizer=optimizer).gradients, 1e-10)

    def test_training(self):
        """Two steps of Adam under a plan are those under any other; the plan is read back as it was saved."""
        module, batch = drawn()
        losses = []
        with tempfile.TemporaryDirectory() as folder:
            plan = planned(module, batch)
            plan.save(Path(folder) / "plan.json")
            again = penstock.Planned.load(Path(folder) / "plan.json")
            plan.show(Path(folder) / "plan.html")
            self.assertIn("<svg", (Path(folder) / "plan.html").read_text())
        self.assertEqual(str(again), str(plan))
        for how in ({"plan": plan}, {"plan": again}, {"actors": 1, "microbatches": 4}):
            step = penstock.trainer(module, batch, loss=token_loss, optimizer=torch.optim.Adam(module.parameters()), clip=0.1, **how)
            losses.append([float(step(batch)), float(step(batch))])
        self.assertEqual(losses[0], losses[1])
        for one, other in zip(losses[0], losses[2]):
            self.assertAlmostEqual(one, other, delta=1e-10)

    def test_looking(self):
        """A planned step says its stages, and its stages are ordered by other schedules."""
        module, batch = drawn()
        plan = planned(module, batch, replicas=False)
        step = penstock.trainer(module, batch, loss=token_loss, optimizer=torch.optim.AdamW(module.parameters()), plan=plan)
        first, second = (name for name, _, _ in plan.file.stages)
        self.assertIn(f"0 {first} ", step.explain())
        self.assertIn(f"1 {second} ", step.explain())
        self.assertIn("Model on 2 a100-80, nvlink3, by best", str(plan))
        self.assertIn("<pre>Model on 2", plan._repr_html_())
        found = penstock.compare(module, batch, loss=token_loss, plan=plan, names=["gpipe", "1f1b"])
        self.assertEqual(set(found), {"gpipe", "1f1b"})
        self.assertEqual(len(found["gpipe"].memory), 2)

    def test_numbers_of_micro_batches(self):
        """The number that is asked for is planned, printed and run, whichever planner and however many devices share it."""
        torch.manual_seed(0)
        module = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(6)], torch.nn.Linear(16, 3))
        batch, loss = (torch.randn(32, 16), torch.randint(3, (32,))), torch.nn.CrossEntropyLoss()
        others = [name for name in penstock.planners() if name not in ("best", "degrees", "piper", "exact")]
        for planner in ["best", "degrees", "piper", *random.Random(SEED).sample(others, 2)]:
            for asked in (8, 2, [4, 8]):
                with self.subTest(planner, asked=asked, seed=SEED):
                    plan = penstock.plan(module, batch, loss=loss, planner=planner, microbatches=asked, devices=4, device="a100-80", seconds=0.1)
                    self.assertIn(plan.microbatches, asked if isinstance(asked, list) else [asked])
                    self.assertIn(f" 32 samples in {plan.microbatches} micro-batches", str(plan))
                    if asked == 8 and planner == "degrees":
                        step = penstock.trainer(module, batch, loss=loss, plan=plan)
                        self.assertEqual(step.microbatches(batch), 8)
        plan = penstock.plan(module, batch, loss=loss, planner="degrees", microbatches=8, devices=4, only="pipe=1,data=4")
        self.assertRegex(str(plan), r" in 8 micro-batches")
        self.assertEqual(plan.file.table_microbatches, 2)

    def test_memory(self):
        """A limit holds for what the step's own program takes; what a refusal names does."""
        module, batch = drawn()
        most = max(planned(module, batch, planner="pipedream", memory=1e12).memory)
        with self.assertRaises(penstock.PenstockError) as caught:
            planned(module, batch, planner="pipedream", memory=most / 4)
        needed = float(re.search(r"would do is [^(]*\((\d+)", str(caught.exception))[1])
        plan = planned(module, batch, planner="pipedream", memory=needed)
        step = penstock.trainer(module, batch, loss=token_loss, optimizer=torch.optim.AdamW(module.parameters()), plan=plan)
        self.assertLessEqual(max(step.predict().memory), needed)
        self.assertEqual(sorted(step.predict().memory), sorted(plan.memory))

    def test_measured(self):
        """Measured here: a prediction for each device, and a plan."""
        module, batch = drawn()
        step = penstock.trainer(module, batch, loss=token_loss, optimizer=torch.optim.AdamW(module.parameters()), microbatches=4)
        before = step.state_dict()
        found = step.predict("here")
        self.assertEqual(len(found.memory), 2)
        self.assertTrue(0 < found.lower_bound <= found.seconds and 0 <= found.bubble < 1)
        self.assertTrue(all(torch.equal(before[name], value) for name, value in step.state_dict().items()))
        measured = penstock.profile(module, batch, loss=token_loss, microbatches=4, rounds=2)
        with tempfile.TemporaryDirectory() as folder:
            measured.save(Path(folder) / "costs.json")
            plan = planned(module, batch, profile=Path(folder) / "costs.json")
        self.assertIn("on 2 threads of this machine", str(plan))
        self.assertLess(penstock.check(module, batch, loss=token_loss, plan=plan).gradients, 1e-10)


@unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
class Large(unittest.TestCase):
    def test_llama_on_a_cluster(self):
        """The way of a model that no machine here holds, from meta tensors, in small: replicas, stages and shares for 64 devices."""
        zoo.stub_torchvision()
        import transformers

        config = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                          intermediate_size=128, vocab_size=256, use_cache=False)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        ids = torch.zeros(128, 64, dtype=torch.long)
        plan = penstock.plan(model, {"input_ids": ids, "labels": ids}, cluster=CLUSTER, planner="degrees", only="pipe=4", dynamic=False,
                             microbatches=128, seconds=60)
        self.assertEqual(plan.file.devices, [16] * 4)
        self.assertGreaterEqual(len(plan.file.stages), 4)
        self.assertEqual(len(plan.memory), 64)
        self.assertIn("<svg", plan.page())
        nodes = [node for _, nodes, _ in plan.file.stages for node in nodes]
        self.assertEqual(len(nodes), len(set(nodes)))
        self.assertIn("model.layers.3.mlp.down_proj", nodes)


class Refusals(unittest.TestCase):
    def test_refused(self):
        module, batch = drawn()
        with tempfile.TemporaryDirectory() as folder:
            wrong, plan = Path(folder) / "wrong.toml", Path(folder) / "plan.json"
            wrong.write_text("[[devices]]\ncount = 0\n")
            plan.write_text("{}")
            cases = [
                (lambda: planned(module, batch, planner="piperr"), 'did you mean "piper"?'),
                (lambda: planned(module, batch, memory=100, planner="pipedream"), "a memory of each device that would do is"),
                (lambda: planned(module, batch, cluster=Path(folder) / "none.toml"), "none.toml cannot be read"),
                (lambda: planned(module, batch, cluster=wrong), "wrong.toml:2"),
                (lambda: penstock.Planned.load(plan), "is no plan"),
                (lambda: planned(module, batch, microbatches=3), "cannot be cut into 3 equal micro-batches"),
                (lambda: penstock.trainer(module, batch, loss=token_loss, plan=planned(module, batch), schedule="gpipe"),
                 "plan= and schedule='gpipe'\n  the plan says how the step is cut and placed"),
                (lambda: penstock.trainer(*drawn(layers=2), loss=token_loss, plan=planned(module, batch)), "which the model has not"),
            ]
            for call, expected in cases:
                with self.subTest(expected), self.assertRaises(penstock.PenstockError) as caught:
                    call()
                self.assertIn(expected, str(caught.exception))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
