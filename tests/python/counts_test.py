# SPDX-License-Identifier: Apache-2.0
"""Losses that take something of the whole batch, drawn: whatever micro-batches make of them is the whole batch's, or refused, or noted.

usage: counts_test.py   6 losses, drawn by PENSTOCK_SEED; with PENSTOCK_SOAK=1 a thousand.
"""

import math
import random
import unittest
from collections import Counter

import torch
import torch.nn as nn
from evaluate import SOAK, drawn_seed, sampled  # finds the package

import penstock

SEED = drawn_seed()
DRAWN = 1000 if SOAK else 6
SAMPLES, PLACES = 12, 5


class Drawn:
    """A loss as text, a function of losses l[samples, places], parameters p[2] that are positive, and the data's mask k, weights w and classes t."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.text = self.loss()

    def one(self, *choices):
        chosen = self.random.choice(choices)
        return chosen() if callable(chosen) else chosen

    def element(self):
        """An expression of the shape of l, with parameters."""
        return self.one("l", "l", "l * k", "l * w", lambda: f"({self.element()}) * {self.weight()}", "l.masked_fill(k == 0, 0.0)", "torch.where(k > 0, l, 0.3 * l)",
                        "(l * p[0]).sqrt()", "l.log1p()", "(l - l.mean(1, keepdim=True)).square()", lambda: f"l / {self.count()}", "l.softmax(1)", "l / l.shape[0]")

    def weight(self):
        """An expression of the shape of l, of data alone."""
        return self.one("k", "w", "(w > 0.4).double()", "F.one_hot(t, 5).double()", lambda: f"({self.weight()} / {self.count()})", "F.normalize(w.flatten(), p=1, dim=0).view_as(w)",
                        "F.normalize(w, p=1, dim=1)", "(w + k)", "w / w.sum((0, 1), keepdim=True)", "w / w.norm()", "(w - w.mean())", "w.cumsum(1)", "w.flip(1)")

    def count(self):
        """A number of the data."""
        whole = self.one("k", "w", "(k + 1)", "(w * k)", lambda: self.weight())
        return self.one(f"({whole}).sum()", f"({whole}).sum((0, 1), keepdim=True)", f"({whole}).sum().view(1)", f"({whole}).mean()", f"({whole}).sum().clamp(min=1)",
                        f"({whole}).sum(0).sum()", f"torch.count_nonzero({whole})", f"torch.einsum('bs,bs->', {whole}, w)", f"torch.dot(({whole}).flatten(), w.flatten())",
                        f"({whole}).nansum()", f"({whole}).sum().sqrt()", f"torch.nan_to_num(({whole}).sum())", f"(({whole}).sum() / k.numel())", f"({whole}).norm(p=1)",
                        f"({whole}).abs().max()", f"({whole}).std()", f"({whole}).sum().expand(3).mean()", f"({whole}).shape[0]", f"({whole}).sum(1, keepdim=True).clamp(min=0.5)",
                        f"(({whole}).sum() + 1)")

    def scalar(self):
        """A number with parameters."""
        x = self.element()
        return self.one(f"({x}).sum()", f"({x}).mean()", f"({x}).sum() / {self.count()}", f"({x}).sum() * {self.count()} ** -1", f"({x}).sum() * torch.exp(-torch.log({self.count()}))",
                        f"({x}).mean() / {self.count()}", f"({x}).sum(1).mean()", f"({x}).mean(0).sum()", f"(({x}) * {self.weight()}).sum()", f"torch.stack([({x}).mean(), l.mean()]).mean()",
                        f"torch.stack([({x}).sum() / {self.count()}, (l * k).sum() / k.sum()]).mean()", f"({x}).mean().sqrt()", f"({x}).logsumexp((0, 1))", f"({x}).max()",
                        f"({x}).sum() / ({x}).shape[0]", f"{self.count()} * p.sum()", "p.square().sum()", f"F.mse_loss({x}, w)", f"F.smooth_l1_loss({x}, k, reduction='sum') / {self.count()}",
                        "F.cross_entropy(l, t[:, 0])", "F.cross_entropy(l, t[:, 0].masked_fill(k[:, 0] == 0, -100))",
                        "F.cross_entropy(l.unsqueeze(1).expand(-1, 4, -1).transpose(1, 2).flatten(0, 1) * p[0], t.flatten() % 4, weight=torch.tensor([1., 2., 3., 4.]).double())",
                        f"({x}).masked_fill(k == 0, float('nan')).nanmean()", f"({x})[0].sum()", f"(({x})[:, 0].unsqueeze(0) - ({x})[:, 1].unsqueeze(1)).square().mean()",
                        f"(({x}).sum() / {self.count()}) ** 2", f"({x}).sum() / {self.size()}", f"({x}).mean() * ({self.size()} / {self.size()})",
                        f"{self.size()} * p.sum()", f"torch.cdist({x}, {x}).mean()", "F.cross_entropy(l, t[:, 0], weight=w[0, 0] + torch.arange(5.).double())",
                        f"F.cross_entropy(l, t[:, 0], weight=torch.arange(1., 6.).double(), label_smoothing=0.1) / {self.count()}", f"({x}).sum() / ({self.count()} + p[1])",
                        f"({x}).sum() / ({self.count()} * p[0].exp())", f"torch.maximum(({x}).mean(), p.sum())", f"(({x}).repeat(2, 1) * w.repeat(2, 1)).mean()",
                        "F.cross_entropy(torch.stack([l, l * p[0], w], 1), t % 3, ignore_index=1, weight=torch.arange(1., 4.).double())")

    def size(self):
        """A number of the sizes, or none of theirs that may look as if it were."""
        return self.one("l.shape[0]", "l.numel()", "(l.shape[0] - 1)", "l.shape[0] ** 2", "math.log(l.shape[0] + 1)", "12", "6", "4")

    def loss(self):
        parts = [self.one("", "0.5 * ", "2 * ") + f"({self.scalar()})" for _ in range(self.random.choice((1, 1, 2, 3)))]
        total = " + ".join(parts)
        return self.one(total, f"({total}).reshape(())" if len(parts) == 1 else f"({total}) / 2", f"torch.stack([(x).reshape(()) for x in ({', '.join(parts)},)]).sum()")


class Model(nn.Module):
    def __init__(self, text):
        super().__init__()
        self.a, self.b, self.p = nn.Linear(3, 4), nn.Linear(4, 1), nn.Parameter(torch.tensor([0.7, 1.3]))
        self.loss = eval(f"lambda l, p, k, w, t: ({text}).reshape(())", {"torch": torch, "F": nn.functional, "math": math})

    def forward(self, x, k, w, t):
        return self.loss(self.b(torch.tanh(self.a(x))).squeeze(-1).square() + 0.1, self.p, k, w, t)


def batch_of(seed):
    torch.manual_seed(seed)
    k = (torch.rand(SAMPLES, PLACES) < torch.rand(SAMPLES, 1)).double()
    k[:, 0] = 1
    return {"x": torch.randn(SAMPLES, PLACES, 3).double() * torch.rand(SAMPLES, 1, 1).double() * 2, "k": k, "w": torch.rand(SAMPLES, PLACES).double() + 0.1,
            "t": torch.randint(5, (SAMPLES, PLACES))}


def close(a, b):
    return bool(((a - b).abs() <= 1e-9 * (1 + b.abs())).all())


class Counts(unittest.TestCase):
    def outcome(self, text, microbatches, dynamic, seed):
        """The fate of the loss, for training and for evaluation."""
        torch.manual_seed(seed)
        module, batch = Model(text).double(), batch_of(seed)
        try:
            loss = module(**batch)
            expected = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        except (RuntimeError, TypeError):
            return "no loss"
        if not torch.isfinite(loss) or abs(loss) > 1e9:  # what is divided by what rounding left of zero is no loss either
            return "no loss"
        try:
            step = penstock.trainer(module, batch, microbatches=microbatches, dynamic=dynamic)
            found, gradients = step.gradients(batch)
            evaluated = step.evaluate(batch)["loss"]
        except penstock.PenstockError:
            return "refused"
        whole = {name: g for (name, _), g in zip(module.named_parameters(), expected) if g is not None}
        equal = close(found, loss) and close(evaluated, loss) and all(close(gradients[name], g) for name, g in whole.items() if name in gradients)
        noted = any(word in note for note in step.exports.first.notes for word in ("micro-batch", "samples", "place"))
        return ("noted and equal" if noted else "equal") if equal else "noted" if noted else "silently wrong"

    def test_a_count_that_multiplies_parameters_and_divides_a_sum(self):
        for text in ("k.sum() * p.sum() + (l * p[0]).sum() / k.sum()", "(l * k.sum()).mean() + (l * p[1]).sum() / k.sum() + p.prod() * k.sum()"):
            self.assertIn(self.outcome(text, 2, True, 5), ("equal", "noted and equal"), text)

    def test_numbers_that_depend_on_the_samples(self):
        """Sizes are numbers in these exports: what they would be of more samples says which come of the samples."""
        noted = ("l.sum() / 12", "l.mean() * (4 / l.shape[0])", "l.mean() * math.log(l.shape[0])", "l.mean() + p.sum() / l.shape[0]",
                 "l.mean() * torch.ones(l.shape[0]).sum()", "l.mean() * torch.tensor(float(l.shape[0]))",
                 "F.binary_cross_entropy_with_logits(l, k, pos_weight=(k.numel() - k.sum()) / k.sum())")
        for text in sampled(noted, 2):
            self.assertEqual(self.outcome(text, 3, False, 5), "noted", text)
        self.assertEqual(self.outcome("F.kl_div(l, w, reduction='batchmean')", 3, False, 5), "equal")

    def test_ops_that_read_several_samples(self):
        self.assertEqual(self.outcome("torch.cdist(l, l).mean() + torch.renorm(l, 2, 1, 0.5).mean()", 3, False, 5), "noted")
        weighted = "F.cross_entropy(l, t[:, 0], weight=torch.arange(1., 6.).double(), label_smoothing=0.1)"
        self.assertEqual(self.outcome(f"{weighted} + torch.cdist(l, torch.ones(3, 5).double() * p[0]).mean()", 3, False, 5), "equal")

    def test_classes_of_places(self):
        """Cross-entropies over [samples, classes, places, ...]."""
        scores, classes = "torch.stack([l, l * p[0], w], 1)", "(t % 3)"
        weights = "torch.tensor([1., 2., 3.]).double()"
        texts = (f"F.cross_entropy({scores}, {classes})", f"F.cross_entropy({scores}, {classes}, ignore_index=1)", f"F.cross_entropy({scores}, {classes}, weight={weights})",
                 f"F.cross_entropy({scores}[..., None], {classes}[..., None], weight={weights}, ignore_index=2, label_smoothing=0.1)",
                 f"F.nll_loss({scores}.log_softmax(1), {classes}, weight={weights})", f"F.cross_entropy({scores}, {classes}, reduction='sum') / {classes}.numel()")
        for i, text in sampled(enumerate(texts), 2):
            microbatches, dynamic = ((3, False), (12, False), (2, True))[i % 3]
            self.assertEqual(self.outcome(text, microbatches, dynamic, 5), "equal", (text, microbatches, dynamic))

    def test_no_loss_is_multiplied_by_the_micro_batches(self):
        """Numbers that are a micro-batch's own, and numbers of the data that have parameters in them, are noted: they are divided by its own numbers."""
        noted = ("(l * k).sum() / (k.sum() * p[0].exp())", "(l * k).sum() / (k.sum() + p[0])", "(l * k).sum() / (k.sum() - p[0])", "(l * (p[0] / k.sum())).sum()",
                 "torch.renorm(l.T[None], 2, 1, 1000.0).sum() / k.sum()", "l.flatten().logcumsumexp(0).sum() / k.sum()", "k.sum() / (l * k).sum()")
        for text in sampled(noted, 3):
            torch.manual_seed(5)
            module, batch = Model(text).double(), batch_of(5)
            loss = module(**batch)
            loss.backward()
            step = penstock.trainer(module, batch, microbatches=4, actors=1)
            found, gradients = step.gradients(batch)
            self.assertTrue(any("micro-batch" in note for note in step.exports.first.notes), text)
            self.assertTrue(0.6 < (found / loss).item() < 1.6, (text, found, loss))
            norms = [(gradients[name].norm() / p.grad.norm()).item() for name, p in module.named_parameters() if p.grad is not None and name != "p"]
            self.assertTrue(all(0.3 < norm < 2.5 for norm in norms), (text, norms))
        for text in ("(l * (k.sum() * p[0])).mean()", "(l * k).sum() / k.sum() / p[0].exp() + p.sum() * k.sum()"):
            self.assertEqual(self.outcome(text, 4, False, 5), "equal", text)

    def test_micro_batches_of_one_sample(self):
        """Which dim is the samples' cannot be seen in a graph of one: what is noted of two is noted of it."""
        noted = ("(l * F.layer_norm(w, w.shape)).mean()", "(l * torch.linspace(0, 1, l.shape[0]).double()[:, None]).mean()", "(l * torch.sin(1.0 + torch.arange(l.shape[0]))[:, None]).mean()",
                 "torch.cdist(l[None], w[None]).mean()", "(l.repeat_interleave(2, 0) * w.repeat(2, 1)).mean()", "(F.pad(l, (0, 0, 1, 0))[:-1] * w).mean()")
        for text in sampled(noted, 3):
            self.assertEqual(self.outcome(text, 12, False, 5), "noted", text)
        for text in sampled(("(l.repeat(2, 1) * w.repeat(2, 1)).mean()", "l.mean() * w.repeat(2, 1).mean()", "(l.repeat(1, 2) * w.repeat(1, 2)).sum(1).mean()"), 1):
            self.assertIn(self.outcome(text, 12, False, 5), ("equal", "noted and equal"), text)

    def test_an_extremum_of_a_mean_and_a_parameter(self):
        for text in ("torch.maximum(l.mean(), p.sum())", "torch.minimum(p.prod(), l.mean()) + l.mean()"):
            self.assertEqual(self.outcome(text, 1, False, 5), "noted and equal", text)
            self.assertIn(self.outcome(text, 3, False, 5), ("noted", "noted and equal"), text)

    def test_data_that_counts_the_samples_of_the_whole_batch(self):
        for text in sampled(("(l * w[t[:, 0] + 7]).mean()", "(l * torch.gather(w, 0, t + 7)).mean()", "(l * l.index_select(0, t[:, 0] + 7).detach()).mean()"), 1):
            module, batch = Model(text).double(), batch_of(5)
            with self.assertRaisesRegex(penstock.PenstockError, "(?s)out of .*the samples of each micro-batch are read by themselves.*hint: where the data's numbers count"):
                penstock.trainer(module, batch, microbatches=3, actors=1).gradients(batch)
            self.assertEqual(self.outcome(text, 1, False, 5), "noted and equal", text)

    def test_drawn_losses(self):
        found = Counter()
        chosen = random.Random(SEED)
        for i in range(DRAWN):
            seed = chosen.randrange(1 << 30)
            text, microbatches, dynamic = Drawn(seed).text, chosen.choice((1, 2, 3, 4, 12)), chosen.random() < 0.5
            with self.subTest(i, seed=SEED, text=text, microbatches=microbatches, dynamic=dynamic):
                outcome = self.outcome(text, microbatches, dynamic, seed)
                found[outcome] += 1
                self.assertNotEqual(outcome, "silently wrong")
        print(f"PENSTOCK_SEED={SEED}: {DRAWN} losses: {dict(found)}")


class Core(nn.Module):
    """Something that may read along a sequence, between layers."""

    def __init__(self, core, exchanged):
        super().__init__()
        self.first, self.core, self.last, self.exchanged = nn.Linear(4, 4), core, nn.Linear(4, 3), exchanged

    def forward(self, x):
        y = self.first(x)
        y = self.core(y.transpose(0, 1) if self.exchanged else y)
        y = y[0] if isinstance(y, tuple) else y
        return self.last(y.transpose(0, 1) if self.exchanged else y).square().mean()


class Attends(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class AttendsWithWeights(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(50, 1, 4))

    def forward(self, x):
        return x + self.table[: x.shape[0]]


class TimeMajor(unittest.TestCase):
    """[places, samples, width]: what reads along dim 0 is refused, what does not is right however it is cut."""

    def test_sequences_along_dim_0(self):
        encoder = lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)  # noqa: E731
        cores = {"lstm": lambda: nn.LSTM(4, 4), "attention": lambda: Attends(4, 2), "positions": Positions}
        cores |= {"gru": lambda: nn.GRU(4, 4), "with weights": lambda: AttendsWithWeights(4, 2), "encoder": encoder} if SOAK else {}
        for name, make in cores.items():
            for exchanged in (False, True):
                for dynamic in (True, False) if SOAK else (name != "lstm",):
                    with self.subTest(name, exchanged=exchanged, dynamic=dynamic):
                        torch.manual_seed(0)
                        module, x = Core(make(), exchanged).double(), torch.randn(6, 5, 4).double()
                        if not exchanged:
                            with self.assertRaisesRegex(penstock.PenstockError, "(?s)along dim 0.*hint: give samples first: batch_first=True"):
                                penstock.trainer(module, x, microbatches=3, actors=1, dynamic=dynamic)
                            continue
                        step = penstock.trainer(module, x, microbatches=3, actors=1, dynamic=dynamic)
                        self.assertTrue(close(step.gradients(x)[0], module(x).detach()))
                        self.assertEqual(step.exports.first.notes, [])

    def test_one_place_in_a_micro_batch(self):
        """Which the graph does not tell from other dims of one place."""
        for name, make in {"lstm": lambda: nn.LSTM(4, 4), "attention": lambda: Attends(4, 2), "positions": Positions}.items():
            with self.subTest(name):
                module, x = Core(make(), False).double(), torch.randn(6, 5, 4).double()
                with self.assertRaisesRegex(penstock.PenstockError, "(?s)along dim 0.*module core.*hint: give samples first: batch_first=True"):
                    penstock.trainer(module, x, microbatches=6, actors=1)
                module = Core(make(), True).double()
                self.assertTrue(close(penstock.trainer(module, x, microbatches=6, actors=1).gradients(x)[0], module(x).detach()))

    def test_places_by_themselves(self):
        module, x = Core(nn.Linear(4, 4), False).double(), torch.randn(6, 5, 4).double()
        self.assertTrue(close(penstock.trainer(module, x, microbatches=3, actors=1).gradients(x)[0], module(x).detach()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
