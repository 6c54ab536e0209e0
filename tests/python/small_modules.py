# SPDX-License-Identifier: Apache-2.0
"""Small modules, batches for them, and what PyTorch itself makes of them: for tests of trainers."""

import os
import unittest
from unittest import mock

import evaluate  # noqa: F401  (it finds the package)
import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from torch.nn import functional

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
    return mock.patch.dict(os.environ, {"PENSTOCK_CACHE": "off"})


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

    def assert_trains_alike(self, step, twin, optimizer, batches):
        """Batch by batch the step has the losses, gradients and parameters of the twin, which autograd and its optimizer train."""
        for batch in batches:
            loss, gradients = autograd(twin, batch)
            found, own = step.gradients(batch)
            self.assertAlmostEqual(found.item(), loss, delta=1e-10)
            self.assert_alike(own, gradients, 1e-10)
            optimizer.step()
            self.assertAlmostEqual(step(batch).item(), loss, delta=1e-10)
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)
        self.assertAlmostEqual(step.evaluate(batch)["loss"].item(), token_loss(twin(batch[0]), batch[1]).item(), delta=1e-10)
