# SPDX-License-Identifier: Apache-2.0
"""Modules trained through the package against PyTorch itself: gradients, and what a trainer takes and shows.

usage: trainer_test.py
"""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import SCHEDULES, Case, Model, autograd, gradients_of_call, relative, seeded, texts, token_loss
from torch.nn import functional

import penstock


class Gradients(Case):
    def test_uneven_targets_under_every_schedule(self):
        module, batch = seeded(Model), texts()
        loss, theirs = autograd(module, batch)
        for actors, schedule in [(1, "1f1b"), *sampled([(actors, schedule) for actors in (2, 4) for schedule in SCHEDULES], 2)]:
            with self.subTest(schedule=schedule, actors=actors):
                step = penstock.trainer(module, batch, loss=token_loss, actors=actors, schedule=schedule, microbatches=8)
                found, gradients = step.gradients(batch)
                torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
                self.assert_alike(gradients, theirs)

    def test_shared_micro_batches_and_zero(self):
        module, batch = seeded(Model), texts()
        loss, theirs = autograd(module, batch)
        for zero in sampled((0, 1, 3), 2):
            with self.subTest(zero=zero):
                step = penstock.trainer(module, batch, loss=token_loss, actors=2, data=2, zero=zero, microbatches=4)
                self.assert_alike(step.gradients(batch)[1], theirs)

    def test_gradients_between_steps_that_share_state(self):
        batch = texts()
        for zero, recompute in sampled([(zero, recompute) for zero in (1, 2, 3) for recompute in (False, True, "selective")], 2):
            with self.subTest(zero=zero, recompute=recompute):
                module, twin = seeded(Model), seeded(Model)
                optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin)]
                step = penstock.trainer(module, batch, loss=token_loss, optimizer=optimizers[0], actors=2, data=2, zero=zero, microbatches=4,
                                        clip=0.1, recompute=recompute)
                for size in (8, 4):  # another shape, in fewer micro-batches than the training's
                    part = tuple(tensor[:size] for tensor in batch)
                    loss, theirs = autograd(twin, part)
                    found, gradients = step.gradients(part)
                    self.assertAlmostEqual(found.item(), loss, delta=1e-6)
                    self.assert_alike(gradients, theirs, 1e-5)
                    autograd(twin, batch)
                    nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
                    optimizers[1].step()
                    step(batch)
                self.assert_alike(step.state_dict(), twin.state_dict(), 1e-6)

    def test_micro_batches_of_one_sample(self):
        module = seeded(nn.Linear, 6, 4)
        batch = torch.randn(6, 6, dtype=torch.float64), torch.tensor([0, -100, 3, 2, -100, 1])
        loss, theirs = autograd(module, batch, functional.cross_entropy)
        step = penstock.trainer(module, batch, loss=nn.CrossEntropyLoss(), actors=1, microbatches=6)
        found, gradients = step.gradients(batch)
        torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
        self.assert_alike(gradients, theirs)

    def test_a_gradient_that_no_micro_batch_changes(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.map = nn.Linear(6, 4)
                self.register_buffer("scale", torch.rand(4))

            def forward(self, x):
                return (self.map(x) * self.scale).sum() / x.shape[0]
        module, x = seeded(Scaled), torch.randn(8, 6, dtype=torch.float64)
        loss = module(x)
        loss.backward()
        step = penstock.trainer(module, x, actors=1, microbatches=4)
        found, gradients = step.gradients(x)
        torch.testing.assert_close(found.item(), loss.item(), rtol=1e-12, atol=1e-12)
        self.assert_alike(gradients, {name: parameter.grad for name, parameter in module.named_parameters()})

    def test_a_smaller_batch_has_fewer_micro_batches(self):
        module = seeded(Model)
        for plan in sampled(({"schedule": "zb-h1"}, {"schedule": "interleaved-1f1b"}, {"data": 2, "zero": 1}), 1):
            step = penstock.trainer(module, texts(batch=16), loss=token_loss, microbatches=8, **plan)
            for size, parts in ((12, 4), (6, 2), (16, 8)):
                with self.subTest(plan, size=size):
                    batch = texts(batch=size)
                    self.assertEqual(step.microbatches(batch), parts)
                    self.assert_alike(step.gradients(batch)[1], autograd(module, batch)[1])

    def test_losses_that_are_sums(self):
        def added(logits, targets):
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

        def squares(logits, targets):
            return (logits.mean((1, 2)) - targets.double().mean(1)).square().mean()
        module, batch = seeded(Model, layers=2), texts()
        for loss, reduction in ((added, "sum"), (token_loss, "mean"), (squares, "mean")):
            with self.subTest(loss.__name__):
                expected, theirs = autograd(module, batch, loss)
                step = penstock.trainer(module, batch, loss=loss, microbatches=4, reduction=reduction)
                found, gradients = step.gradients(batch)
                self.assertAlmostEqual(found.item(), expected, delta=1e-11 * abs(expected))
                self.assert_alike(gradients, theirs)
                self.assertAlmostEqual(step.evaluate(batch)["loss"].item(), expected, delta=1e-11 * abs(expected))
                self.assertLess(penstock.check(module, batch, loss=loss, reduction=reduction, in_parts=loss is not token_loss).gradients, 1e-11)
        averaged = penstock.trainer(module, batch, loss=added, microbatches=4).gradients(batch)[0]  # of a sum, the mean over micro-batches is another
        self.assertAlmostEqual(averaged.item() * 4, autograd(module, batch, added)[0], delta=1e-9)
        with self.assertRaisesRegex(penstock.PenstockError, 'there is no reduction "max"'):
            penstock.trainer(module, batch, loss=added, microbatches=4, reduction="max")

    def test_a_part_of_the_loss_that_reads_parameters_alone(self):
        class Penalised(Model):
            def forward(self, tokens, targets):
                penalty = self.head.weight.square().mean() + 0.1 * self.layers[0].up.weight.pow(3).sum() + self.layers[3].down.bias.cos().sum()
                return token_loss(super().forward(tokens), targets) + penalty
        module, batch = seeded(Penalised), texts()
        loss = module(*batch)
        loss.backward()
        theirs = {name: parameter.grad for name, parameter in module.named_parameters()}
        for plan in sampled(({"actors": 1}, {"schedule": "zb-h1"}, {"data": 2}, {"data": 2, "zero": 3}), 2):
            with self.subTest(plan):
                found, gradients = penstock.trainer(module, batch, microbatches=4, **plan).gradients(batch)
                self.assertAlmostEqual(found.item(), loss.item(), delta=1e-11)
                self.assert_alike(gradients, theirs)

    def test_arguments_that_are_not_read(self):
        """Neither what nobody reads, nor what only gives a size, keeps a loss from dividing by a count of the others."""
        class Loss(Model):
            def forward(self, tokens, other, targets, mask=None, sized=None):
                scale = 1 if sized is None else torch.ones(sized.shape[1], dtype=torch.float64).sum()
                return token_loss(super().forward(tokens), targets) / scale
        module, (tokens, targets) = seeded(Loss, layers=2), texts()
        others = {"other": torch.randn(8, 3), "mask": torch.ones(8, 2, 4)}
        for more in sampled((others, {**others, "sized": torch.ones(8, 5)}, {**dict(reversed(others.items())), "sized": torch.ones(8, 5)}), 2):
            batch = {**more, "tokens": tokens, "targets": targets}
            loss, theirs = gradients_of_call(module, batch)
            step = penstock.trainer(module, batch, microbatches=4)
            found, gradients = step.gradients(batch)
            torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
            self.assert_alike(gradients, theirs)
            torch.testing.assert_close(step.evaluate(batch)["loss"].item(), loss, rtol=1e-12, atol=1e-12)
            self.assertIn("the module does not read its argument mask", step.exports.first.notes)
            longer = {**batch, **({"sized": torch.ones(8, 7)} if "sized" in batch else {"mask": torch.ones(8, 9, 9)})}
            torch.testing.assert_close(step.gradients(longer)[0].item(), gradients_of_call(module, longer)[0], rtol=1e-12, atol=1e-12)

    def test_a_loss_that_reads_no_argument(self):
        class Decay(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer.weight.square().sum()
        module, batch = seeded(Decay), torch.randn(8, 4)
        found, gradients = penstock.trainer(module, batch, microbatches=2, actors=1).gradients(batch)
        torch.testing.assert_close(found.item(), module(batch).item(), rtol=1e-12, atol=1e-12)
        self.assertLess(relative(gradients["layer.weight"], 2 * module.layer.weight), 1e-12)

    def test_autocast_computes_in_bf16_and_keeps_masters(self):
        module, batch = seeded(Model, layers=2, dtype=torch.float32), texts(ignored=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = module(batch[0])
        self.assertEqual(logits.dtype, torch.bfloat16)
        loss, theirs = autograd(module, batch, lambda _, targets: token_loss(logits.float(), targets))
        step = penstock.trainer(module, batch, loss=token_loss, actors=2, microbatches=4, autocast=torch.bfloat16)
        found, gradients = step.gradients(batch)
        self.assertAlmostEqual(found.item(), loss, delta=1e-4)
        self.assert_alike(gradients, theirs, 0.02)
        self.assertTrue(all(value.dtype == torch.float32 for value in (*gradients.values(), *step.state_dict().values())))
        exact = autograd(module, batch)[1]
        self.assertGreater(max(relative(gradients[name], exact[name]) for name in exact), 1e-4)  # it did compute in bf16
        with self.assertRaisesRegex(penstock.PenstockError, "autocast to torch.float16 is not supported"):
            penstock.trainer(module, batch, loss=token_loss, microbatches=4, autocast=torch.float16)

    def test_frozen_parameters_have_none(self):
        module, batch = seeded(Model, layers=2), texts()
        module.layers.requires_grad_(False)
        _, theirs = autograd(module, batch)
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        self.assert_alike(step.gradients(batch)[1], theirs)

    def test_a_fully_ignored_micro_batch(self):
        module, (tokens, targets) = seeded(Model), texts()
        targets[:2] = -100
        loss, theirs = autograd(module, (tokens, targets))
        step = penstock.trainer(module, (tokens, targets), loss=token_loss, microbatches=4)
        found, gradients = step.gradients((tokens, targets))
        torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
        self.assert_alike(gradients, theirs)

    def test_check_says_how_far(self):
        found = penstock.check(seeded(Model), texts(), loss=token_loss, actors=2)
        self.assertLess(found.gradients, 1e-12)
        self.assertIn("gradients", str(found))

    def test_check_draws_the_same_masks(self):
        for plan in sampled(({"schedule": "zb-h1"}, {"data": 2}, {"in_parts": True}), 2):
            batch = texts(ignored="in_parts" not in plan)
            self.assertLess(penstock.check(seeded(Model, layers=2, dropout=0.3), batch, loss=token_loss, seed=5, **plan).gradients, 1e-11)

        class Noisy(Model):
            def forward(self, tokens):
                return super().forward(tokens) * (torch.rand(19, dtype=torch.float64) < 0.5)
        with self.assertRaisesRegex(penstock.PenstockError, "aten::rand draws other numbers here than in PyTorch"):
            penstock.check(seeded(Noisy, layers=2), texts(), loss=token_loss)


class Life(Case):
    def test_threads_of_trainers_end(self):
        module, batch = seeded(Model, layers=2), texts()
        before = threading.active_count(), len(os.listdir("/proc/self/task"))
        for _ in range(6):
            penstock.trainer(module, batch, loss=token_loss, microbatches=4).gradients(batch)
        gc.collect()
        end = time.monotonic() + 60
        while len(os.listdir("/proc/self/task")) > before[1] and time.monotonic() < end:
            time.sleep(0.01)  # the system still lists a thread for a moment after it was joined
        self.assertEqual((threading.active_count(), len(os.listdir("/proc/self/task"))), before)

    def test_memory_stays_over_a_thousand_steps(self):
        def resident():
            pages, of_files = map(int, Path("/proc/self/statm").read_text().split()[1:3])  # libraries' come and go as other processes need memory
            return (pages - of_files) * os.sysconf("SC_PAGE_SIZE")
        module, batch = seeded(Model, layers=2), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=2, optimizer=torch.optim.SGD(module.parameters(), lr=1e-3))
        for _ in range(200):
            step(batch)
        before = resident()
        for _ in range(1000):
            step(batch)
        self.assertLess(resident() - before, 8 << 20)


class Beside(unittest.TestCase):
    def test_pytorch_runs_after_the_engine_was_loaded(self):
        """Libraries of both define variables of the same names: where one wrote over another's memory, the first TorchScript function hung. And the
        package does not import transformers for those who do not use it."""
        script = """
import sys, tempfile, penstock, torch
penstock.trainer
assert "transformers" not in sys.modules
from torch.utils.data import DataLoader
penstock.schedules()
@torch.jit.script
def add(x: torch.Tensor): return x + 1
found = [add(torch.ones(2)).sum().item(), len(list(DataLoader(torch.ones(8, 2), 2, num_workers=2, multiprocessing_context="fork")))]
with torch.profiler.profile() as profile: torch.ones(3, requires_grad=True).square().sum().backward()
with tempfile.NamedTemporaryFile() as file:
    torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}.store", rank=0, world_size=1)
    torch.distributed.all_reduce(part := torch.ones(1))
    torch.distributed.destroy_process_group()
assert found + [part.item(), len(profile.events()) > 0] == [4, 4, 1, True], found
"""
        with tempfile.TemporaryDirectory() as folder:
            (file := Path(folder) / "script.py").write_text(script)
            subprocess.run([sys.executable, file], check=True, timeout=300, capture_output=True)


class Looking(Case):
    def test_prediction_page_and_explanation(self):
        step = penstock.trainer(seeded(Model), texts(), loss=token_loss, microbatches=4)
        predicted = step.predict()
        self.assertGreater(predicted.seconds, predicted.lower_bound * 0.999)
        self.assertEqual(len(predicted.memory), 2)
        with tempfile.TemporaryDirectory() as folder:
            step.show(Path(folder) / "step.html")
            self.assertIn("<html", (Path(folder) / "step.html").read_text())
            for name, words in (("step.gif", "step.gif: a page cannot be written as 'gif'\n  hint: its ending is .html"), ("no/step.html", "no/step.html cannot be written: No such file")):
                with self.assertRaisesRegex(penstock.PenstockError, words):
                    step.show(f"{folder}/{name}")
        self.assertIn("layers.2", step.explain())
        self.assertIn("<iframe", step._repr_html_())

    def test_compare_ranks_schedules(self):
        found = penstock.compare(seeded(Model), texts(), loss=token_loss, microbatches=4)
        times = [each.seconds for each in found.values()]
        self.assertEqual(times, sorted(times))
        self.assertIn("1f1b", found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
