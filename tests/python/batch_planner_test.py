# SPDX-License-Identifier: Apache-2.0
"""Batches of a DataLoader, planned: against PyTorch's gradients of the same samples one by one.

usage: batch_planner_test.py
"""

import copy
import unittest

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
from evaluate import sampled  # finds the package
from small_modules import Case, Model, seeded, texts, token_loss
from torch.nn import functional
from torch.utils.data import DataLoader

import penstock

LENGTHS = (30, 3, 17, 4, 4, 9, 25, 2, 3, 8, 31, 5)


class Causal(nn.Module):
    """Each token reads those before it, so that padding behind a sample changes nothing of it."""

    def __init__(self, width=8, layers=2, vocabulary=19):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x)


def samples_of(lengths):
    return [tuple(tensor[0] for tensor in texts(1, length)) for length in lengths]


def collate(samples):
    """Padded to the longest; what is behind a sample's end is not learnt."""
    longest = max(len(tokens) for tokens, _ in samples)

    def padded(tensors, value):
        return torch.stack([functional.pad(tensor, (0, longest - len(tensor)), value=value) for tensor in tensors])
    return padded([tokens for tokens, _ in samples], 0), padded([targets for _, targets in samples], -100)


def length(sample):
    return len(sample[0])


def mean_of(module, samples):
    """The mean over the targets of all samples, each run by itself."""
    loss = sum(functional.cross_entropy(module(tokens[None])[0], targets, reduction="sum") for tokens, targets in samples)
    return loss / sum((targets != -100).sum() for _, targets in samples)


def trainer(module, samples, **plan):
    return penstock.trainer(module, collate(samples[:2]), loss=token_loss, microbatches=1, **plan)


class Equal(Case):
    def test_gradients_of_planned_batches(self):
        samples = samples_of(LENGTHS)
        module = seeded(Causal)
        loss = mean_of(module, samples)
        loss.backward()
        expected = {name: p.grad for name, p in module.named_parameters()}
        plans = [(name, more) for name in ("dynapipe", "searched") for more in ({}, {"memory": 64}, {"split_backward": True}, {"memory": 64, "recompute": True})]
        step = trainer(module, samples, actors=2)
        for name, more in sampled(plans, 2):
            with self.subTest(name, **more):
                planner = penstock.BatchPlanner(step, name, collate=collate, length=length, fixed=0.1, **more)
                planned = planner(samples)
                self.assertEqual(sorted(i for part in planned.samples for i in part), list(range(len(samples))))
                self.assertGreater(len(planned), 1)
                self.assertLessEqual(planned.peak, more.get("memory", planned.peak))
                found, gradients = step.gradients(planned)
                torch.testing.assert_close(found.item(), loss.item(), rtol=1e-12, atol=1e-12)
                self.assert_alike(gradients, expected, 1e-10)

    def test_a_first_stage_that_is_not_trained(self):
        samples, module = samples_of(LENGTHS), seeded(Causal)
        for part in (module.embed, module.layers[0]):
            part.requires_grad_(False)
        loss = mean_of(module, samples)
        loss.backward()
        step = trainer(module, samples, split=["layers.1"])
        found, gradients = step.gradients(penstock.BatchPlanner(step, collate=collate, length=length, fixed=0.1)(samples))
        self.assertAlmostEqual(found.item(), loss.item(), delta=1e-12)
        self.assert_alike(gradients, {name: p.grad for name, p in module.named_parameters() if p.requires_grad}, 1e-10)

    def test_a_loader_of_samples(self):
        samples = samples_of(LENGTHS)
        module = seeded(Causal)
        twin = copy.deepcopy(module)
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin))
        step = trainer(module, samples, actors=2, optimizer=ours)
        planner = penstock.BatchPlanner(step, "dynapipe", collate=collate, length=length, fixed=0.1)
        order = torch.Generator().manual_seed(1)
        loader = DataLoader(samples, batch_size=5, collate_fn=list, shuffle=True, generator=order)
        found = [step(batch).item() for batch in planner.batches(loader)]
        order.manual_seed(1)
        for loss, batch in zip(found, loader, strict=True):
            theirs.zero_grad()
            expected = mean_of(twin, batch)
            expected.backward()
            theirs.step()
            self.assertAlmostEqual(loss, expected.item(), delta=1e-10)
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-10)

    def test_by_input_ids_and_by_pairs(self):
        step = trainer(seeded(Causal), samples_of(LENGTHS), actors=2)
        dicts = [{"input_ids": [0] * n} for n in LENGTHS]
        planned = penstock.BatchPlanner(step, collate=list)(dicts)
        self.assertEqual([len(part) for part in planned], [len(part) for part in planned.samples])
        pairs = penstock.BatchPlanner(step, collate=list, length=lambda n: (n, 32 - n), fixed=0.01)(list(LENGTHS))
        self.assertNotEqual(pairs.samples, penstock.BatchPlanner(step, collate=list, length=lambda n: n, fixed=0.01)(list(LENGTHS)).samples)


class Refused(Case):
    def test_planners_and_trainers(self):
        samples = samples_of(LENGTHS)
        step = trainer(seeded(Causal), samples, actors=2)
        for name, expected in (("flexsp", "(?s)one after the other in a row.*a module of PyTorch reads a row for each sample.*dynapipe or searched"),
                               ("infinipipe", "one after the other in a row"), ("balanced", "one after the other in a row"),
                               ("pad", "plans no batches of samples by their lengths"), ("dip", "plans no batches of samples by their lengths"),
                               ("dynapip", '(?s)no batch planner "dynapip".*did you mean "?dynapipe')):
            with self.subTest(name), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.BatchPlanner(step, name, collate=collate)
        for name, value in (("round", 0), ("round", 1.5), ("memory", -1), ("linear", 0), ("fixed", float("nan")), ("candidates", True), ("quadratic", "2")):
            with self.subTest(name), self.assertRaisesRegex(penstock.PenstockError, f"(?s){name}={value!r} is not what {name} takes.*number, at least"):
                penstock.BatchPlanner(step, collate=collate, **{name: value})
        chunked = trainer(seeded(Causal, layers=4), samples, actors=2, schedule="interleaved-1f1b")
        with self.assertRaisesRegex(penstock.PenstockError, "(?s)4 stages on 2 actors.*chunks=1"):
            penstock.BatchPlanner(chunked, collate=collate)
        frozen = seeded(Causal, layers=3)
        for part in (frozen.embed, frozen.layers[0]):
            part.requires_grad_(False)
        ahead = trainer(frozen, samples, split=["layers.1", "layers.2"], options={"frozen": [0.5]})
        with self.assertRaisesRegex(penstock.PenstockError, "(?s)1 frozen in front of the trained stages.*leave out frozen"):
            penstock.BatchPlanner(ahead, collate=collate)
        shared = penstock.trainer(seeded(Model, layers=2), texts(), loss=token_loss, data=2, microbatches=2)
        with self.assertRaisesRegex(penstock.PenstockError, "data=2: 2 devices would share each micro-batch"):
            penstock.BatchPlanner(shared, collate=collate)

    def test_samples(self):
        step = trainer(seeded(Causal), samples_of(LENGTHS), actors=2)
        for given, more, expected in (([(1, 2)], {}, 'a sample is a tuple, which has no "input_ids"'),
                                      ([3], {"length": lambda n: 1.5}, "sample 0 has length 1.5"),
                                      ([3, 0], {"length": lambda n: n}, "sample 1 has an input of length 0"),
                                      ([], {"length": lambda n: n}, "the batch has no samples"),
                                      ([3, 90], {"length": lambda n: n, "memory": 50}, "(?s)sample.*96")):
            with self.subTest(expected), self.assertRaisesRegex(penstock.PenstockError, expected):
                penstock.BatchPlanner(step, collate=list, **more)(given)


if __name__ == "__main__":
    unittest.main()
