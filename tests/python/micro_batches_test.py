# SPDX-License-Identifier: Apache-2.0
"""Steps whose micro-batches have lengths of their own, against PyTorch's gradients of the same samples one by one.

usage: micro_batches_test.py
"""

import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import torch
import torch.nn as nn
import zoo
from evaluate import sampled  # finds the package
from small_modules import Case, Images, Model, seeded, texts, token_loss
from torch.nn import functional

import penstock

SHAPES = [(2, 5), (3, 9), (2, 5), (1, 12), (4, 3), (3, 9), (1, 2), (2, 7)]


def small(make=Model, **options):
    """One layer, which is cut into two stages: an export takes as long as the module is deep."""
    return seeded(make, layers=1, **options)


def mixed(shapes=SHAPES):
    return [texts(*shape) for shape in shapes]


def summed(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def token_mean(module, parts):
    """The mean over the targets of all micro-batches that count."""
    return sum(summed(module(tokens), targets) for tokens, targets in parts) / sum((targets != -100).sum() for _, targets in parts)


def gradients_of(module, loss):
    module.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


class Equal(Case):
    def test_under_every_schedule(self):
        plans = ((1, "1f1b"), (2, "1f1b"), (2, "zb-h1"), (2, "interleaved-1f1b"), (4, "zb-h1"), (4, "zb-v"))
        for actors, schedule in sampled(plans, 1):
            module, parts = seeded(Model, layers=actors), mixed()
            loss, theirs = gradients_of(module, token_mean(module, parts))
            with self.subTest(schedule=schedule, actors=actors):
                step = penstock.trainer(module, parts[0], loss=token_loss, actors=actors, schedule=schedule, microbatches=1)
                found, gradients = step.gradients(penstock.MicroBatches(parts))
                torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
                self.assert_alike(gradients, theirs)

    def test_steps_of_other_shapes_each(self):
        module, twin = small(), small()
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, twin))
        step = penstock.trainer(module, texts(), loss=token_loss, optimizer=ours, actors=2, schedule="zb-h1", microbatches=4, clip=0.5)
        for shapes in (SHAPES[:4], SHAPES[2:7], None, SHAPES[:4], SHAPES[:1]):
            batch = texts() if shapes is None else mixed(shapes)
            expected = gradients_of(twin, token_mean(twin, [batch] if shapes is None else batch))[0]
            nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
            theirs.step()
            given = batch if shapes is None else penstock.MicroBatches(batch)
            self.assertEqual(step.microbatches(given), 4 if shapes is None else len(shapes))
            self.assertAlmostEqual(step(given).item(), expected, delta=1e-6)
        self.assert_alike(step.state_dict(), twin.state_dict(), 1e-5)

    def test_losses_without_counts(self):
        def squares(logits, targets):
            return (logits.mean((1, 2)) - targets.double().mean(1)).square().mean()
        module, parts = small(), mixed()
        samples = sum(len(tokens) for tokens, _ in parts)
        for loss, reduction, whole in ((squares, "mean", samples), (summed, "sum", 1)):
            with self.subTest(loss.__name__):
                weigh = len if reduction == "mean" else lambda _: 1
                expected, theirs = gradients_of(module, sum(weigh(x) * loss(module(x), y) for x, y in parts) / whole)
                step = penstock.trainer(module, parts[0], loss=loss, reduction=reduction, microbatches=1)
                found, gradients = step.gradients(penstock.MicroBatches(parts))
                self.assertAlmostEqual(found.item(), expected, delta=1e-11 * abs(expected))
                self.assert_alike(gradients, theirs)

    def test_a_number_for_all_micro_batches(self):
        class Counted(Model):
            def forward(self, tokens, targets, num_items_in_batch):
                return summed(super().forward(tokens), targets) / num_items_in_batch
        module, parts = small(Counted), mixed()
        count = sum((targets != -100).sum() for _, targets in parts)
        batches = [{"tokens": tokens, "targets": targets, "num_items_in_batch": count} for tokens, targets in parts]
        loss, theirs = gradients_of(module, sum(module(**batch) for batch in batches))
        step = penstock.trainer(module, batches[0], microbatches=1)
        found, gradients = step.gradients(penstock.MicroBatches(batches))
        torch.testing.assert_close(found.item(), loss, rtol=1e-12, atol=1e-12)
        self.assert_alike(gradients, theirs)
        batches[2]["num_items_in_batch"] = count + 1
        with self.assertRaisesRegex(penstock.PenstockError, '"num_items_in_batch" is not cut .* another one in micro-batch 2'):
            step.gradients(penstock.MicroBatches(batches))

    def test_dropout_is_the_same_under_every_plan(self):
        parts, found = mixed(), []
        for actors, schedule in sampled(((1, "1f1b"), (2, "zb-h1"), (2, "interleaved-1f1b"), (4, "1f1b")), 1):
            module = seeded(Model, layers=2, dropout=0.3)
            step = penstock.trainer(module, parts[0], loss=token_loss, actors=actors, schedule=schedule, microbatches=1)
            found.append(step.gradients(penstock.MicroBatches(parts)))
            again = step.gradients(penstock.MicroBatches(parts))
            self.assertEqual(found[-1][0].item(), again[0].item())
        self.assertGreater(abs(found[0][0].item() - token_mean(module, parts).item()), 0)
        for loss, gradients in found[1:]:
            torch.testing.assert_close(loss.item(), found[0][0].item(), rtol=1e-13, atol=1e-13)
            self.assert_alike(gradients, found[0][1])

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_t5_with_pairs_of_lengths(self):
        zoo.stub_torchvision()
        import transformers

        torch.manual_seed(0)
        module = zoo.without_dropout(zoo.t5(transformers, layers=1)[0]).double().train()
        parts = []
        for batch, source, target in ((2, 12, 7), (3, 5, 9), (4, 20, 4), (2, 12, 7)):
            labels = zoo.tokens(batch, target)
            labels[-1, target // 2:] = -100
            parts.append({**zoo.text(batch, source), "labels": labels})
        count = sum((part["labels"] != -100).sum() for part in parts)
        loss, theirs = gradients_of(module, sum(module(**part).loss * (part["labels"] != -100).sum() for part in parts) / count)
        step = penstock.trainer(module, parts[0], actors=2, microbatches=1)
        found, gradients = step.gradients(penstock.MicroBatches(parts))
        self.assertAlmostEqual(found.item(), loss, delta=1e-10)
        self.assert_alike(gradients, theirs, 1e-6)  # RMS norms of T5 are computed in f32
        self.assertEqual(len(step.exports), 2)  # the example, with its sizes as numbers, and one for all classes
        alone = {name: tensor[:1] for name, tensor in parts[1].items()}
        with self.assertRaisesRegex(penstock.PenstockError, "(?s)the steps of two shape classes have other states.*of two samples and more"):
            step.gradients(penstock.MicroBatches([parts[0], alone]))
        self.assertAlmostEqual(step.gradients(penstock.MicroBatches(parts))[0].item(), loss, delta=1e-10)


class Refused(Case):
    def refused(self, expected, step, batch, call="gradients"):
        with self.assertRaisesRegex(penstock.PenstockError, expected):
            getattr(step, call)(batch)

    def test_plans_that_cannot(self):
        module, parts = small(), penstock.MicroBatches(mixed())
        shared = penstock.trainer(module, texts(), loss=token_loss, data=2, microbatches=4)
        self.refused("data=2: 2 devices would share each micro-batch", shared, parts)
        step = penstock.trainer(module, texts(), loss=token_loss, microbatches=4)
        self.refused("not evaluated together", step, parts, "evaluate")
        planned = penstock.plan(module, texts(), loss=token_loss, microbatches=4, seconds=0.2)
        self.refused("the plan is one of equal micro-batches", penstock.trainer(module, texts(), loss=token_loss, plan=planned), parts)
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            table = Path(folder) / "table.csv"
            table.write_text("0F0,0F1,0B0,0B1\n")
            fixed = penstock.trainer(module, texts(), loss=token_loss, schedule=table, actors=1, microbatches=2)
            self.refused("8 micro-batches, and the table .*table.csv is one of 2", fixed, parts)
        with self.assertRaisesRegex(penstock.PenstockError, "there are no micro-batches"):
            penstock.MicroBatches([])
        self.assert_alike(step.gradients(parts)[1], gradients_of(module, token_mean(module, list(parts)))[1])  # the step goes on

    def test_batch_norms(self):
        def images(batch, size):
            return torch.randn(batch, 3, size, size, dtype=torch.float64), torch.randint(5, (batch,))
        step = penstock.trainer(seeded(Images), images(4, 8), loss=functional.cross_entropy, microbatches=2)
        self.refused("decaying averages over micro-batches, as those of batch norms", step, penstock.MicroBatches([images(2, 8), images(2, 12)]))


if __name__ == "__main__":
    unittest.main()
