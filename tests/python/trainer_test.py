"""Modules trained through the package against PyTorch itself: gradients, whole steps, state, and what must be refused.

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
from unittest import mock

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from torch.nn import functional

import penstock
import penstock.trace

SCHEDULES = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v")


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Tokens to tokens; the head shares the embedding's weight."""

    def __init__(self, width=8, layers=4, vocabulary=19, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=0.3),
                                    nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))

    def forward(self, images):
        return self.layers(images)


def without_cache():
    """For tests that count what is traced."""
    return mock.patch.dict(os.environ, {name: value for name, value in os.environ.items() if name != "PENSTOCK_CACHE"}, clear=True)


def token_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def texts(batch=8, length=6, vocabulary=19, ignored=True):
    tokens, targets = torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))
    if ignored:
        targets[torch.rand(batch, length) < torch.linspace(0, 0.9, batch)[:, None]] = -100  # uneven over the micro-batches
    return tokens, targets


def seeded(make, *args, dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    return make(*args, **kwargs).to(dtype)


def autograd(module, batch, loss=token_loss):
    module.zero_grad()
    found = loss(module(batch[0]), batch[1])
    found.backward()
    return found.item(), {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def gradients_of_call(module, batch):
    module.zero_grad()
    found = module(**batch)
    found.backward()
    return found.item(), {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def relative(a, b):
    return ((a - b).norm() / b.norm().clamp(min=1e-30)).item()


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def assert_alike(self, found, theirs, bound=1e-11):
        self.assertEqual(found.keys(), theirs.keys())
        for name in theirs:
            self.assertLess(relative(found[name], theirs[name]), bound, name)


class Gradients(Case):
    def test_uneven_targets_under_every_schedule(self):
        module, batch = seeded(Model, layers=8), texts()
        loss, theirs = autograd(module, batch)
        for actors, schedule in [(1, "1f1b"), *sampled([(actors, schedule) for actors in (2, 4) for schedule in SCHEDULES], 4)]:
            with self.subTest(schedule=schedule, actors=actors):
                step = penstock.trainer(module, batch, loss=token_loss, actors=actors, schedule=schedule, microbatches=8)
                found, gradients = step.gradients(batch)
                self.assertAlmostEqual(found.item(), loss, delta=1e-12)
                self.assert_alike(gradients, theirs)

    def test_shared_micro_batches_and_zero(self):
        module, batch = seeded(Model), texts()
        loss, theirs = autograd(module, batch)
        for zero in (0, 1, 3):
            with self.subTest(zero=zero):
                step = penstock.trainer(module, batch, loss=token_loss, actors=2, data=2, zero=zero, microbatches=4)
                self.assert_alike(step.gradients(batch)[1], theirs)

    def test_gradients_between_steps_that_share_state(self):
        batch = texts()
        for zero, recompute in sampled([(zero, recompute) for zero in (1, 2, 3) for recompute in (False, True)], 3):
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
        self.assertAlmostEqual(found.item(), loss, delta=1e-12)
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
        self.assertAlmostEqual(found.item(), loss.item(), delta=1e-12)
        self.assert_alike(gradients, {name: parameter.grad for name, parameter in module.named_parameters()})

    def test_a_smaller_batch_has_fewer_micro_batches(self):
        module = seeded(Model)
        for plan in ({"schedule": "zb-h1"}, {"schedule": "interleaved-1f1b"}, {"data": 2, "zero": 1}):
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
        for plan in ({"actors": 1}, {"schedule": "zb-h1"}, {"data": 2}, {"data": 2, "zero": 3}):
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
        for more in (others, {**others, "sized": torch.ones(8, 5)}, {**dict(reversed(others.items())), "sized": torch.ones(8, 5)}):
            batch = {**more, "tokens": tokens, "targets": targets}
            loss, theirs = gradients_of_call(module, batch)
            step = penstock.trainer(module, batch, microbatches=4)
            found, gradients = step.gradients(batch)
            self.assertAlmostEqual(found.item(), loss, delta=1e-12)
            self.assert_alike(gradients, theirs)
            self.assertAlmostEqual(step.evaluate(batch)["loss"].item(), loss, delta=1e-12)
            self.assertIn("the module does not read its argument mask", step.exports.first.notes)
            longer = {**batch, **({"sized": torch.ones(8, 7)} if "sized" in batch else {"mask": torch.ones(8, 9, 9)})}
            self.assertAlmostEqual(step.gradients(longer)[0].item(), gradients_of_call(module, longer)[0], delta=1e-12)

    def test_a_loss_that_reads_no_argument(self):
        class Decay(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer.weight.square().sum()
        module, batch = seeded(Decay), torch.randn(8, 4)
        found, gradients = penstock.trainer(module, batch, microbatches=2, actors=1).gradients(batch)
        self.assertAlmostEqual(found.item(), module(batch).item(), delta=1e-12)
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
        self.assertAlmostEqual(found.item(), loss, delta=1e-12)
        self.assert_alike(gradients, theirs)

    def test_check_says_how_far(self):
        found = penstock.check(seeded(Model), texts(), loss=token_loss, actors=2)
        self.assertLess(found.gradients, 1e-12)
        self.assertIn("gradients", str(found))

    def test_check_draws_the_same_masks(self):
        for plan in ({"schedule": "zb-h1"}, {"data": 2}, {"in_parts": True}):
            batch = texts(ignored="in_parts" not in plan)
            self.assertLess(penstock.check(seeded(Model, layers=2, dropout=0.3), batch, loss=token_loss, seed=5, **plan).gradients, 1e-11)

        class Noisy(Model):
            def forward(self, tokens):
                return super().forward(tokens) * (torch.rand(19, dtype=torch.float64) < 0.5)
        with self.assertRaisesRegex(penstock.PenstockError, "aten::rand draws other numbers here than in PyTorch"):
            penstock.check(seeded(Noisy, layers=2), texts(), loss=token_loss)


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
                self.assertAlmostEqual(step.evaluate(batch)["loss"].item(), expected, delta=1e-12)

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


class Life(Case):
    def test_threads_of_twenty_trainers_end(self):
        module, batch = seeded(Model), texts()
        before = threading.active_count(), len(os.listdir("/proc/self/task"))
        for _ in range(20):
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
        module, batch = seeded(Model), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4, optimizer=torch.optim.SGD(module.parameters(), lr=1e-3))
        for _ in range(200):
            step(batch)
        before = resident()
        for _ in range(1000):
            step(batch)
        self.assertLess(resident() - before, 8 << 20)


class Beside(unittest.TestCase):
    def test_pytorch_runs_after_the_engine_was_loaded(self):
        """Libraries of both define variables of the same names: where one wrote over another's memory, the first TorchScript function hung."""
        script = """
import tempfile, penstock, torch
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
