# SPDX-License-Identifier: Apache-2.0
"""Windows of several steps in one table, against PyTorch's loop, and against PyTorch reading the parameters that the table says.

usage: windows_test.py
"""

import copy
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import Case, Images, Model, seeded, texts, token_loss
from torch.nn import functional

import penstock


class Untied(Model):
    """Each stage has parameters of its own, so that it may update them by itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.head.weight = nn.Parameter(self.head.weight.detach().clone())


def stage_of(name):
    return 0 if name.startswith(("embed", "layers.0")) else 1


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def momentum(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def trained(module, batches, optimizer, clip=0.0):
    """PyTorch's losses, step by step."""
    losses = []
    for tokens, targets in batches:
        optimizer.zero_grad()
        losses.append(token_loss(module(tokens), targets))
        losses[-1].backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return torch.stack(losses).detach()


def trained_late(module, batches, optimizer, late):
    """The same where step b of a window reads of stage s what its update b - late[s] left, and updates the newest."""
    losses, versions = [], [{name: p.detach().clone() for name, p in module.named_parameters()}]
    for b, (tokens, targets) in enumerate(batches):
        read = {name: versions[max(0, b - late[stage_of(name)])][name].requires_grad_() for name in versions[0]}
        losses.append(token_loss(torch.func.functional_call(module, read, (tokens,)), targets))
        for name, gradient in zip(read, torch.autograd.grad(losses[-1], list(read.values())), strict=True):
            module.get_parameter(name).grad = gradient
        optimizer.step()
        versions.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return torch.stack(losses).detach()


class Drained(Case):
    """Tables of one step, several times: windows change nothing."""

    def test_as_the_loop(self):
        plans = [{"schedule": s, "data": d, "zero": z} for s in ("1f1b", "zb-h1", "interleaved-1f1b") for d, z in ((1, 0), (2, 0), (2, 1), (2, 3))]
        for plan in sampled(plans, 2):
            with self.subTest(plan):
                module, batches = seeded(Model), [texts() for _ in range(3)]
                twin = copy.deepcopy(module)
                step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=adamw(module), microbatches=4, clip=0.1, window=3, **plan)
                losses, theirs = step(penstock.Window(batches)), trained(twin, batches, adamw(twin), 0.1)
                torch.testing.assert_close(losses, theirs, rtol=1e-6, atol=0)  # a clip's factor is f32
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-6)
                self.assertEqual(step.steps, 3)

    def test_rates_of_each_step_and_a_rest(self):
        module, batches = seeded(Model, layers=2), [texts() for _ in range(8)]
        batches[5:6] = [tuple(tensor[:4] for tensor in batches[5])]  # of another shape: a window of its own
        twin = copy.deepcopy(module)
        ours, theirs = momentum(module), momentum(twin)
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in (ours, theirs)]
        step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=ours, microbatches=2, schedule="zb-h1", window=3)
        expected = []
        for batch in batches:
            expected.append(trained(twin, [batch], theirs))
            schedulers[1].step()
        sizes, losses = [], []
        for window in penstock.windows(batches, 3, schedulers[0]):
            sizes.append(len(window))
            losses.append(step(window))
        self.assertEqual(sizes, [3, 2, 1, 2])
        torch.testing.assert_close(torch.cat(losses), torch.cat(expected), rtol=1e-10, atol=0)
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)
        self.assertEqual(schedulers[0].get_last_lr(), schedulers[1].get_last_lr())
        loss = step(batches[0])  # a batch by itself is a step by itself
        torch.testing.assert_close(loss, trained(twin, batches[:1], theirs)[0], rtol=1e-10, atol=0)

    def test_a_number_for_each_step(self):
        class Counted(Model):
            def forward(self, tokens, targets, num_items_in_batch):
                return functional.cross_entropy(super().forward(tokens).flatten(0, 1), targets.flatten(), reduction="sum") / num_items_in_batch
        module, batches = seeded(Counted, layers=2), [texts() for _ in range(3)]
        twin = copy.deepcopy(module)
        given = [{"tokens": x, "targets": y, "num_items_in_batch": (y != -100).sum() * (1 + i)} for i, (x, y) in enumerate(batches)]
        optimizer, expected = momentum(twin), []
        for batch in given:
            optimizer.zero_grad()
            expected.append(twin(**batch))
            expected[-1].backward()
            optimizer.step()
        step = penstock.trainer(module, given[0], optimizer=momentum(module), microbatches=4, window=3)
        torch.testing.assert_close(step(penstock.Window(given)), torch.stack(expected).detach(), rtol=1e-10, atol=0)
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)

    def test_the_bits_of_steps_without_a_window(self):
        """Dropout is keyed by the step; buffers are carried from step to step."""
        images = [(torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.randint(5, (4,))) for _ in range(3)]
        for make, batches, loss in ((lambda: seeded(Model, layers=2, dropout=0.3), [texts() for _ in range(3)], token_loss),
                                    (lambda: seeded(Images), images, functional.cross_entropy)):
            found = []
            for window in (1, 3):
                module = make()
                step = penstock.trainer(module, batches[0], loss=loss, optimizer=momentum(module), microbatches=2, window=window)
                losses = step(penstock.Window(batches)) if window > 1 else torch.stack([step(batch) for batch in batches])
                found.append((losses, step.state_dict()))
            self.assertTrue(torch.equal(found[0][0], found[1][0]))
            for name, tensor in found[0][1].items():
                self.assertTrue(torch.equal(tensor, found[1][1][name]), name)


class Late(Case):
    def test_reads_what_the_table_says(self):
        """PipeDream with one micro-batch a step: stage s of two reads what is 1 - s updates late; 2BW: both read what is one late."""
        for schedule, microbatches, late in (("pipedream", 1, (1, 0)), ("pipedream-2bw", 4, (1, 1)), ("hetpipe", 1, (1, 1))):
            for make in (momentum, adamw):
                with self.subTest(schedule=schedule, optimizer=make.__name__):
                    module, batches = seeded(Untied, layers=2), [texts() for _ in range(7)]
                    twin = copy.deepcopy(module)
                    optimizer = make(twin)
                    step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=make(module), microbatches=microbatches,
                                            schedule=schedule, window=4, split=["layers.1"])
                    losses = torch.cat([step(window) for window in penstock.windows(batches, 4)])
                    expected = torch.cat([trained_late(twin, part, optimizer, late) for part in (batches[:4], batches[4:])])
                    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=0)
                    self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)

    def test_between_windows_all_is_current(self):
        module, batches = seeded(Untied, layers=2), [texts() for _ in range(4)]
        step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=momentum(module), microbatches=4, schedule="pipedream-2bw", window=4)
        step(penstock.Window(batches))
        loss, gradients = step.gradients(batches[1])
        evaluated = step.evaluate(batches[1])["loss"]
        step.sync()
        expected = token_loss(module(batches[1][0]), batches[1][1])
        expected.backward()
        for found in (loss, evaluated):
            torch.testing.assert_close(found.item(), expected.item(), rtol=1e-12, atol=1e-12)
        self.assert_alike(gradients, {name: p.grad for name, p in module.named_parameters()})


class Frozen(Case):
    def test_stages_in_front_that_are_not_trained(self):
        """Alone they have no backward; with options frozen= their forwards for the next step may run in this one's idle time."""
        plans = [{"split": ["layers.1"]}, {"split": ["layers.1"], "schedule": "zb-h1", "window": 3}, {"split": ["layers.1", "layers.2"], "options": {"frozen": [0.5]}},
                 {"split": ["layers.1", "layers.2"], "options": {"frozen": [0.5]}, "window": 3}]
        for plan in plans:
            with self.subTest(plan):
                module, batches = seeded(Untied, layers=3), [texts() for _ in range(3)]
                module.embed.requires_grad_(False)
                module.layers[0].requires_grad_(False)
                twin = copy.deepcopy(module)
                step = penstock.trainer(module, batches[0], loss=token_loss, optimizer=momentum(module), microbatches=4, **plan)
                losses = step(penstock.Window(batches)) if "window" in plan else torch.stack([step(batch) for batch in batches])
                torch.testing.assert_close(losses, trained(twin, batches, momentum(twin)), rtol=1e-10, atol=0)
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)


class Refused(Case):
    def test_with_the_reason(self):
        module, batch = seeded(Untied, layers=2), texts()
        settings = {"loss": token_loss, "optimizer": momentum(module), "microbatches": 4}
        for more, expected in (({"window": 0}, "(?s)window=0 is not what window takes.*a whole number, at least 1"),
                               ({"window": 2, "options": {"window": 2}}, "window is an argument of its own"),
                               ({"window": 3, "schedule": "pipedream", "clip": 0.5}, "(?s)pipedream.*waits for other actors"),
                               ({"split": ["layers.1", "head"], "options": {"frozen": [0.5]}}, "stage 0 is frozen, and its .* reads parameter .* which is trained"),
                               ({"window": 3, "schedule": "pipedream", "recompute": True, "options": {"in_flight": 1.5}}, "in_flight")):
            with self.subTest(more), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.trainer(module, batch, **settings, **more)
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            table = Path(folder) / "table.csv"
            table.write_text("0F0,0F1,0B0,0U0,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n")
            with self.assertRaisesRegex(penstock.PenstockError, "(?s)table.csv is a table for 2 training steps, and window is 1.*window=2"):
                penstock.trainer(module, batch, **{**settings, "microbatches": 1}, schedule=table)
            of_file = penstock.trainer(module, batch, **{**settings, "microbatches": 1}, schedule=table, window=2)
            self.assertEqual(of_file(penstock.Window([batch, batch])).shape, (2,))
            of_file.gradients(batch)
            with self.assertRaisesRegex(penstock.PenstockError, "1 steps, and the table .* is one of 2"):
                of_file(batch)
        step = penstock.trainer(module, batch, **settings, window=2)
        other = tuple(tensor[:, :3] for tensor in batch)
        for call, given, expected in ((step, penstock.Window([batch] * 3), "the window has 3 batches, and the trainer's window is 2"),
                                      (step, penstock.Window([batch, other]), r"(?s)\"tokens\" is of shape \[8, 3\].* in step 1 of the window, in step 0 of shape \[8, 6\].*penstock.windows"),
                                      (step, penstock.Window([batch, batch], [[0.1], [0.1, 0.2]]), "step 1 of the window has 2 learning rates, the optimizer 1 groups"),
                                      (step.gradients, penstock.Window([batch, batch]), "a window is of training steps; for gradients"),
                                      (step.evaluate, penstock.Window([batch, batch]), "(?s)for evaluation there is one batch.*step.evaluate")):
            with self.subTest(expected), self.assertRaisesRegex(penstock.PenstockError, expected):
                call(given)
        for make, expected in ((lambda: penstock.Window([]), "the window has no batch"),
                               (lambda: penstock.Window([batch], [[1], [2]]), "1 batches and learning rates for 2"),
                               (lambda: penstock.Window([penstock.MicroBatches([batch])]), "one is MicroBatches"),
                               (lambda: next(penstock.windows([batch], 0)), "windows of 0 steps")):
            with self.subTest(expected), self.assertRaisesRegex(penstock.PenstockError, expected):
                make()
        self.assertEqual(step(penstock.Window([batch, batch])).shape, (2,))  # the trainer goes on


if __name__ == "__main__":
    unittest.main()
