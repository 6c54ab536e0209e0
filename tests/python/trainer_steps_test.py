# SPDX-License-Identifier: Apache-2.0
"""Whole steps of trainers against PyTorch itself: optimisers, statistics, dropout, and what must be refused.

usage: trainer_steps_test.py
"""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from small_modules import SCHEDULES, Case, Images, Model, autograd, relative, seeded, texts, token_loss, without_cache
from torch.nn import functional

import penstock
import penstock.trace


class Steps(Case):
    def train(self, make, optimiser, batches, **plan):
        """Five steps here and in PyTorch: losses and state."""
        module, twin = seeded(make), seeded(make)
        ours, theirs = optimiser(module), optimiser(twin)
        step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=ours, microbatches=4, **plan)
        for batch in batches:
            loss = step(batch)
            theirs.zero_grad()
            their_loss = token_loss(twin(batch[0]), batch[1])
            their_loss.backward()
            if "clip" in plan:
                nn.utils.clip_grad_norm_(twin.parameters(), plan["clip"])
            theirs.step()
            self.assertAlmostEqual(loss.item(), their_loss.item(), delta=1e-5 * abs(their_loss.item()))
        state = step.state_dict()
        self.assertEqual(list(state), list(twin.state_dict()))
        for name, value in twin.state_dict().items():
            self.assertLess(relative(state[name].double(), value.double()), 1e-5, name)

    def test_optimisers(self):
        batches = [texts() for _ in range(5)]

        def groups(module):
            decayed = [p for p in module.parameters() if p.dim() > 1]
            other = [p for p in module.parameters() if p.dim() == 1]
            return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2, betas=(0.8, 0.95))
        optimisers = {
            "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
            "groups": groups,
            "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
            "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
            "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        }
        for name, make in optimisers.items():
            with self.subTest(name):
                self.train(Model, make, batches)

    def test_clipping(self):
        self.train(Model, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2), [texts() for _ in range(5)], clip=0.05)

    def test_schedulers_of_the_learning_rate(self):
        module, twin, batch = seeded(Model), seeded(Model), texts()
        ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (module, twin))
        rates = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in (ours, theirs)]
        step = penstock.trainer(module, batch, loss=token_loss, optimizer=ours, microbatches=4)
        for _ in range(4):
            step(batch)
            theirs.zero_grad()
            token_loss(twin(batch[0]), batch[1]).backward()
            theirs.step()
            for rate in rates:
                rate.step()
        self.assertLess(relative(step.parameter("embed.weight"), twin.embed.weight), 1e-6)

    def test_running_statistics(self):
        module, twin = seeded(Images, dtype=torch.float32), seeded(Images, dtype=torch.float32)
        images, labels = torch.randn(16, 3, 8, 8), torch.randint(5, (16,))
        optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, twin)]
        step = penstock.trainer(module, (images, labels), loss=functional.cross_entropy, optimizer=optimisers[0], microbatches=8, split=["layers.3"])
        for _ in range(3):
            loss, total = step((images, labels)), 0.0
            optimisers[1].zero_grad()
            for part in range(8):
                cut = slice(2 * part, 2 * part + 2)
                their_loss = functional.cross_entropy(twin(images[cut]), labels[cut]) / 8
                their_loss.backward()
                total += their_loss.item()
            optimisers[1].step()
            self.assertAlmostEqual(loss.item(), total, delta=1e-5)
        state = step.state_dict()
        for name, value in twin.state_dict().items():
            self.assertLess(relative(state[name].double(), value.double()), 2e-6, name)

    def test_a_stage_that_begins_at_what_does_nothing_in_evaluation(self):
        """Its stage begins at what follows; a stage of which nothing is left stands all the same."""
        module = seeded(nn.Sequential, nn.Dropout(0.1), nn.Linear(4, 4), nn.Dropout(0.1), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 3), nn.Dropout(0.1))
        batch, loss = (torch.randn(8, 4).double(), torch.randint(3, (8,))), nn.CrossEntropyLoss()
        expected = loss(module.eval()(batch[0]), batch[1]).item()
        module.train()
        for begins in (["2"], ["4"], ["2", "3"], ["2", "4", "6"], ["1", "2", "4", "5"], ["6"]):
            with self.subTest(begins=begins):
                optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
                step = penstock.trainer(module, batch, loss=loss, split=begins, actors=len(begins) + 1, microbatches=2, optimizer=optimizer)
                step(batch)
                torch.testing.assert_close(step.evaluate(batch)["loss"].item(), expected, rtol=1e-12, atol=1e-12)

    def test_exports_and_their_traces(self):
        """Sizes are numbers until batches differ, then symbols for the dims in which they did: further lengths need no new export."""
        module, traces = seeded(Model, layers=2), []
        original = penstock.trace.trace
        with without_cache(), mock.patch("penstock.trace.trace", lambda *args: traces.append(args[5]) or original(*args)):
            step = penstock.trainer(module, texts(), loss=token_loss, microbatches=4)
            for length, made in ((6, 1), (6, 1), (3, 2), (9, 2), (6, 2)):
                batch = texts(length=length)
                self.assert_alike(step.gradients(batch)[1], autograd(module, batch)[1])
                self.assertEqual((len(traces), len(step.exports)), (made, made))
        self.assertIsNone(traces[0])
        self.assertEqual([sorted(dims) for dims in traces[1]], [[0, 1]] * len(traces[1]))

    def test_a_size_that_the_module_fixes_is_found_once(self):
        """Before the backward is made; later shapes are exported as they are."""
        class Rooted(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x):
                return self.layer(x).sum() / x.shape[1] ** 0.5 / x.shape[0]

        module, backwards = seeded(Rooted), []
        original = penstock.capture.aot_export_joint_with_descriptors
        with without_cache(), mock.patch("penstock.capture.aot_export_joint_with_descriptors", lambda *args: backwards.append(1) or original(*args)):
            step = penstock.trainer(module, torch.randn(8, 5, 4, dtype=torch.float64), actors=1, microbatches=4)
            for length, made in ((5, 1), (6, 2), (7, 3), (6, 3)):
                x = torch.randn(8, length, 4, dtype=torch.float64)
                module.zero_grad()
                module(x).backward()
                found = step.gradients(x)[1]
                self.assertLess(relative(found["layer.weight"], module.layer.weight.grad), 1e-6)
                self.assertEqual(len(backwards), made, length)


class Dropout(Case):
    def test_same_bits_under_every_plan(self):
        batch, found = texts(), {}
        for schedule in SCHEDULES:
            for actors in (1, 2):
                if actors == 1 and schedule != "1f1b":
                    continue
                module = seeded(Model, dropout=0.3, dtype=torch.float32)
                step = penstock.trainer(module, batch, loss=token_loss, actors=actors, schedule=schedule, microbatches=4,
                                        optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
                losses = [step(batch).item() for _ in range(3)]
                found[schedule, actors] = losses
        self.assertEqual(len({tuple(losses) for losses in found.values()}), 1, found)
        without = penstock.trainer(seeded(Model, dtype=torch.float32), batch, loss=token_loss, microbatches=4).gradients(batch)[0].item()
        self.assertNotEqual(found["1f1b", 2][0], without)


class Refusals(Case):
    def refused(self, text, call):
        with self.assertRaisesRegex(penstock.PenstockError, text):
            call()

    def test_plans(self):
        module, batch = seeded(Model), texts()
        for text, plan in (
                (r'no op comes from the module "layers.9"[^$]*hint: did you mean "layers', {"split": ["layers.9"]}),
                (r"begins at", {"split": ["layers.2", "layers.1"], "actors": 3}),
                (r"cut into 3 equal micro-batches\n  hint: samples lie along dim 0", {"microbatches": 3}),
                (r"1f1b", {"schedule": "1f2b"}),
                (r"stage", {"actors": 40}),
        ):
            with self.subTest(text):
                self.refused(text, lambda plan=plan: penstock.trainer(module, batch, loss=token_loss, **{"microbatches": 4, **plan}))

    def test_optimisers(self):
        module, batch = seeded(Model), texts()

        def made(optimizer):
            return lambda: penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=optimizer)
        self.refused("does not have the parameter", made(torch.optim.AdamW(module.layers.parameters())))
        self.refused("not trained here", made(torch.optim.AdamW([*module.parameters(), nn.Parameter(torch.zeros(3))])))
        self.refused("has no optimizer", lambda: made(None)()(batch))

    def test_batches(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        self.refused("is not .inputs, target.", lambda: step.gradients(batch[0]))
        self.refused(r'" of shape \[0, \d+\] has no samples\n  hint: samples lie along dim 0', lambda: step.gradients(texts(batch=0)))
        self.refused(r'whole names "tokenz", which is no argument\n  arguments: ', lambda: penstock.trainer(module, batch, loss=token_loss, whole=("tokenz",)))
        self.refused("cannot be cut into 4", lambda: penstock.trainer(module, texts(batch=6), loss=token_loss, microbatches=4))
        shared = penstock.trainer(module, batch, loss=token_loss, microbatches=4, data=2)
        self.refused("cannot be cut into 4", lambda: shared.gradients(texts(batch=7)))
        for microbatches, nearest in ((3, 4), (1, 2)):
            self.refused(f"data=2: 2 devices share the micro-batches of a step, and {microbatches} cannot be shared equally\n[^$]*hint: microbatches={nearest}",
                         lambda microbatches=microbatches: penstock.trainer(module, texts(batch=12), loss=token_loss, microbatches=microbatches, data=2))
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            table.write_text(step.explain().split("\n", 1)[1])
            listed = penstock.trainer(module, batch, loss=token_loss, microbatches=4, schedule=table)
            self.refused("cannot be cut into 4", lambda: listed.gradients(texts(batch=6)))
            table.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
            self.refused(r"table.csv is a table of 3 actors, and actors is 2\n[^$]*hint: actors=3",
                         lambda: penstock.trainer(module, batch, loss=token_loss, microbatches=1, schedule=table))
        self.refused("cannot be traced", lambda: step.gradients((batch[0].to(torch.int8), batch[1])))

        class Placed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x, positions):
                return self.layer(x + positions).sum()

        placed = {"x": torch.ones(8, 4), "positions": torch.ones(1, 4)}
        self.refused(r'"positions" of shape \[1, 4\] cannot be cut[^$]*whole=\("positions",\) hands it whole',
                     lambda: penstock.trainer(Placed(), placed, microbatches=4))

    def test_a_step_inside_a_step(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        step._entered.lock.acquire()
        self.refused("a step is running", lambda: step.gradients(batch))
        step._entered.lock.release()
        step.gradients(batch)

    def test_a_parameter_that_was_changed_outside(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        step(batch)
        module.load_state_dict(step.state_dict())  # which gives the module what the trainer has
        step(batch)
        with torch.no_grad():
            module.layers[0].up.weight.mul_(2)
        self.refused('"layers.0.up.weight" of the module was changed', lambda: step(batch))
        step.load_state_dict(module.state_dict())
        step(batch)

    def test_a_fork(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        child = os.fork()
        if child == 0:
            try:
                step.gradients(batch)
            except penstock.PenstockError as error:
                os._exit(0 if "another process" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_an_exception_in_the_loader_leaves_the_step_usable(self):
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)

        def loader():
            yield batch
            raise ValueError("no more")
        with self.assertRaisesRegex(ValueError, "no more"):
            for each in loader():
                step.gradients(each)
        step.gradients(batch)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
