# SPDX-License-Identifier: Apache-2.0
"""Trainers on the stand-in, a device whose memory the host cannot read: the steps of the CPU, issued, recorded and replayed."""

import copy
import json
import unittest

import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import Case, relative
from torch.nn import functional

import penstock

SAMPLES = 8


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 4), nn.RMSNorm(16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)).mean(1)


class Bags(nn.Module):
    """Its bags' sums are looked up by PyTorch's own operator."""

    def __init__(self):
        super().__init__()
        self.bags, self.out = nn.EmbeddingBag(20, 6, mode="sum"), nn.Linear(6, 4)

    def forward(self, words):
        return self.out(self.bags(words))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)

    def forward(self, words):
        return (self.norm(self.words(words)) @ self.words.weight.T).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.cell(x)[0][:, -1])


class ByHand(nn.Module):
    """Norms, a softmax and GELU as people write them themselves."""

    def __init__(self):
        super().__init__()
        self.scale, self.into, self.out = nn.Parameter(torch.ones(16)), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        x = self.into(x)
        x = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
        weights = torch.exp(x - x.amax(-1, keepdim=True))
        x = x * (weights / weights.sum(-1, keepdim=True))
        x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-3)
        return self.out(torch.where(x > 0, x, 0.1 * x)).mean(1)


def floats(*shape):
    return torch.randn(SAMPLES, *shape)


def words(limit, length):
    return torch.randint(0, limit, (SAMPLES, length))


MODULES = {
    "mlp": lambda: (nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4)), floats(6)),
    "layer norms": lambda: (nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)), floats(6)),
    "convolutions": lambda: (nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 4)),
                             floats(3, 8, 8)),
    "group norms": lambda: (nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.ELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4)),
                            floats(4, 9)),
    "attention": lambda: (Attends(), floats(5, 16)),
    "encoder": lambda: (nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(80, 4)), floats(5, 16)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(40, 4)), words(12, 5)),
    "bags": lambda: (Bags(), words(20, 3)),
    "tied": lambda: (Tied(), words(12, 5)),
    "recurrent": lambda: (Recurrent(), floats(4, 6)),
    "dropout": lambda: (nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 4)), floats(6)),
}


def classes(module):
    return 12 if isinstance(module, Tied) else 4


class OnTheStandin(Case):
    def trained(self, module, x, device, **more):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        batch = x, torch.arange(SAMPLES) % classes(module)
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, optimizer=optimizer, microbatches=2, clip=1.0, device=device, **more)
        return [step(batch).item() for _ in range(4)], step.state_dict(), step.evaluate(batch)["loss"].item()

    def test_modules(self):
        for name, made in sampled(MODULES.items(), 2):
            with self.subTest(name):
                torch.manual_seed(0)
                module, x = made()
                module, x = module.double(), x.double() if x.is_floating_point() else x
                expected, found = (self.trained(copy.deepcopy(module), x, device) for device in ("cpu", "standin"))
                for ours, theirs in zip(found[0], expected[0], strict=True):
                    self.assertLess(abs(ours - theirs), 1e-9)
                for key, value in expected[1].items():
                    self.assertLess(relative(found[1][key].double(), value.double()), 1e-6, key)
                self.assertLess(abs(found[2] - expected[2]), 1e-5)

    def test_fused_chains(self):
        for name, made in [("by hand", lambda: (ByHand(), floats(5, 16))), *sampled(MODULES.items(), 1)]:
            with self.subTest(name):
                torch.manual_seed(0)  # a module is the same whatever is drawn beside it
                module, x = made()
                expected = self.trained(copy.deepcopy(module), x, "standin")
                found = self.trained(copy.deepcopy(module), x, "standin", fuse=True)
                for ours, theirs in zip(found[0], expected[0], strict=True):
                    self.assertLess(abs(ours - theirs), 1e-5)
                self.assertLess(abs(found[2] - expected[2]), 1e-4)

    def test_the_host_has_no_fused_chains(self):
        with self.assertRaisesRegex(penstock.PenstockError, "fuse is for devices that compile kernels, and the device is cpu"):
            self.trained(nn.Linear(6, 4), floats(6), "cpu", fuse=True)
        with self.assertRaisesRegex(penstock.PenstockError, "fuse=1 is not what fuse takes"):
            self.trained(nn.Linear(6, 4), floats(6), "standin", fuse=1)

    def test_slices(self):
        torch.manual_seed(0)
        module, x = MODULES["attention"]()
        module, x = module.double(), floats(6, 16).double()
        (expected, state, _), (found, ours, _) = (self.trained(copy.deepcopy(module), x, device, schedule="slimpipe", slices=slices)
                                                  for device, slices in (("cpu", 1), ("standin", 3)))
        for each, other in zip(found, expected, strict=True):
            self.assertLess(abs(each - other), 1e-9)
        for key, value in state.items():
            self.assertLess(relative(ours[key].double(), value.double()), 1e-6, key)

    def test_shapes_alternate(self):
        """Each keeps its recording."""
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
        losses = {}
        for device in ("cpu", "standin"):
            own = copy.deepcopy(module)
            batches = [(words(12, length), words(12, length)) for length in (3, 5)]
            torch.manual_seed(1)
            step = penstock.trainer(own, batches[0], loss=lambda y, t: functional.cross_entropy(y.flatten(0, 1), t.flatten()), microbatches=2,
                                    optimizer=torch.optim.SGD(own.parameters(), lr=0.1), device=device)
            batches = [(words(12, length), words(12, length)) for length in (3, 5)]
            losses[device] = [step(batches[i % 2]).item() for i in range(8)]
        for ours, theirs in zip(losses["standin"], losses["cpu"], strict=True):
            self.assertLess(abs(ours - theirs), 1e-5)

    def test_an_index_outside_of_its_table(self):
        module = nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(40, 4))
        batch = words(12, 5), torch.arange(SAMPLES) % 4
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, microbatches=2, device="standin",
                                optimizer=torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        for done in range(4):  # issued, recorded, replayed
            step(batch)
            state, moments = step.state_dict(), step.optimizer_state_dict()
            bad = batch[0].clone()
            bad[3, 2] = 77
            with self.assertRaisesRegex(penstock.PenstockError, "index 77 is outside its 12 rows"):
                step((bad, batch[1]))
            with self.assertRaisesRegex(penstock.PenstockError, "of no step"):
                step.state_dict()
            step.load_state_dict(state)
            step.load_optimizer_state_dict(moments)
            self.assertEqual(step.steps, done + 1)

    def test_times_are_the_devices(self):
        module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        batch = floats(6), torch.arange(SAMPLES) % 4
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, actors=2, microbatches=2, device="standin")
        self.assertGreater(step.predict(device="here").seconds, 0)
        profile = penstock.profile(module, batch, loss=functional.cross_entropy, microbatches=2, rounds=2, device="standin")
        self.assertEqual(json.loads(profile.text)["machine"]["processor"], "stand-in")
        self.assertIn("2 devices of this machine", str(penstock.plan(module, batch, loss=functional.cross_entropy, microbatches=2, devices=2, profile=profile)))

    def test_devices_that_there_are_not(self):
        module = nn.Linear(4, 4)
        batch = torch.zeros(8, 4), torch.arange(8) % 4
        for device, text in {"tpu": 'there is no device "tpu"', 3: "device=3 is not what device takes"}.items():
            with self.assertRaisesRegex(penstock.PenstockError, text):
                penstock.trainer(module, batch, loss=functional.cross_entropy, device=device)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
