# SPDX-License-Identifier: Apache-2.0
"""Running statistics through all that a trainer does, beside eager PyTorch micro-batch by micro-batch: drawn nets, plans and sequences of calls.

usage: buffers_test.py [ROUNDS [SEED]]
"""

import copy
import functools
import random
import sys
import unittest

import evaluate  # noqa: F401  finds the package
import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from small_modules import Case, relative
from torch.nn import functional

import penstock

ROUNDS, SEED = 3, 1


class Net(nn.Module):
    """Layers, each a linear or convolution with a norm behind it; a norm may be used by several layers."""

    def __init__(self, draw, images):
        super().__init__()
        of_images = lambda: draw.choice((nn.BatchNorm2d, functools.partial(nn.InstanceNorm2d, track_running_stats=True)))  # noqa: E731
        layer, norm = (lambda: nn.Conv2d(3, 3, 3, padding=1), of_images) if images else (lambda: nn.Linear(3, 3), lambda: nn.BatchNorm1d)
        count = draw.randint(2, 5)
        self.layers = nn.ModuleList(layer() for _ in range(count))
        self.norm_of = [draw.randrange(i + 1) for i in range(count)]
        self.norms = nn.ModuleDict({str(n): norm()(3, momentum=draw.choice((0.1, 0.3, 0.01, 1.0)), affine=draw.random() < 0.7) for n in {*self.norm_of}})
        self.images, self.head = images, nn.Linear(3, 4)
        for module in self.norms.values():
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norm_of):
            x = torch.tanh(self.norms[str(norm)](layer(x)))
        return self.head(x.mean((2, 3)) if self.images else x)


class Eager:
    """Does by autograd what a trainer does, one micro-batch after the other."""

    def __init__(self, module, optimizer):
        self.module, self.optimizer = module, optimizer

    def gradients(self, batch, parts, kept=True):
        before = copy.deepcopy(self.module.state_dict())
        self.module.zero_grad()
        total = 0.0
        for x, y in zip(batch[0].chunk(parts), batch[1].chunk(parts)):
            loss = functional.cross_entropy(self.module(x), y) / parts
            loss.backward()
            total += loss.item()
        if kept:
            self.module.load_state_dict(before)
        return total, {name: parameter.grad for name, parameter in self.module.named_parameters() if parameter.grad is not None}

    def step(self, batch, parts):
        loss, _ = self.gradients(batch, parts, kept=False)
        self.optimizer.step()
        return loss

    def evaluate(self, batch):
        self.module.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(self.module(batch[0]), batch[1]).item()
        self.module.train()
        return loss


class RunningStatistics(Case):
    def alike(self, step, eager, call, batch, parts):
        if call == "step":
            self.assertAlmostEqual(step(batch).item(), eager.step(batch, parts), delta=1e-9)
        elif call == "gradients":
            loss, found = step.gradients(batch)
            wanted, theirs = eager.gradients(batch, parts)
            self.assertAlmostEqual(loss.item(), wanted, delta=1e-9)
            for name, value in found.items():
                self.assertTrue(torch.allclose(value, theirs.get(name, torch.zeros(())), rtol=1e-6, atol=1e-9), name)
        elif call == "evaluate":
            self.assertAlmostEqual(step.evaluate(batch)["loss"].item(), eager.evaluate(batch), delta=1e-6)
        elif call == "load":
            state = {name: value + 1 if value.dtype == torch.int64 else value * 1.25 for name, value in eager.module.state_dict().items()}
            eager.module.load_state_dict(state)
            step.load_state_dict(state)
        state = step.state_dict()
        for name, value in eager.module.state_dict().items():
            self.assertLess(relative(state[name].double(), value.double()), 2e-6, f"{name} after {call}")

    def drawn(self, seed):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        images, data, trains = draw.random() < 0.3, draw.choice((1, 1, 2)), draw.random() < 0.7
        module = Net(draw, images).double()
        eager = Eager(twin := copy.deepcopy(module), torch.optim.SGD(twin.parameters(), lr=0.125, momentum=0.5))
        sizes = [draw.choice((16, 24)), 16]
        shape = (3, 4, 4) if images else (3,)
        batches = [(torch.randn(size, *shape, dtype=torch.float64) + 1, torch.randint(4, (size,))) for size in sizes]
        schedule = draw.choice(("1f1b", "gpipe", "zb-h1"))
        actors = draw.randint(1, 1 if schedule == "gpipe" else min(3, len(module.layers)))
        plan = {"actors": actors, "data": data, "microbatches": 4, "schedule": schedule}
        optimizer = torch.optim.SGD(module.parameters(), lr=0.125, momentum=0.5) if trains else None
        calls = draw.choices(("step", "gradients", "evaluate", "load", "state") if trains else ("gradients", "evaluate", "load", "state"), k=7)
        with self.subTest(seed=seed, images=images, norms=module.norm_of, calls=calls, trains=trains, **plan):
            step = penstock.trainer(module, batches[0], loss=functional.cross_entropy, optimizer=optimizer, **plan)
            for call in calls:
                self.alike(step, eager, call, draw.choice(batches), 4)

    def test_drawn_nets_and_calls(self):
        for seed in range(SEED, SEED + ROUNDS):
            self.drawn(seed)

    def test_what_others_leave_is_as_it_was(self):
        """One norm on each of two stages: neither gradients nor an evaluation changes what state_dict() and parameter() give."""
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        batch = torch.randn(12, 3) + 3, torch.randint(3, (12,))
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, microbatches=3, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        view = step.parameter("3.running_var")
        step(batch)
        before = step.state_dict()
        self.assertTrue(torch.equal(view, before["3.running_var"]))
        step.gradients(batch)
        step.evaluate(batch)
        for name, value in step.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        self.assertTrue(torch.equal(view, before["3.running_var"]))
        step(batch)
        self.assertTrue(torch.equal(step.parameter("3.running_var"), step.state_dict()["3.running_var"]))
        self.assertTrue(torch.equal(view, step.state_dict()["3.running_var"]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    ROUNDS, SEED = [*numbers, *(ROUNDS, SEED)[len(numbers):]]
    unittest.main(argv=[argument for argument in sys.argv if not argument.isdigit()])
