# SPDX-License-Identifier: Apache-2.0
"""Models from transformers, timm and torchvision, as they come: what is exported computes what PyTorch computes.

usage: zoo_test.py   Two models, drawn by PENSTOCK_SEED; with PENSTOCK_SOAK=1 all of them, for several sizes too.
"""

import random
import unittest

import torch
import zoo
from evaluate import SOAK, data_of, drawn_seed, run_autograd, run_exported, sampled, worst

import penstock

SEED = drawn_seed()
BOUNDS = {torch.float64: 1e-11, torch.float32: 5e-6}


def chosen(count):
    packages = {"transformers", "timm", "torchvision"}
    names = [name for package, makers in zoo.MODELS.items() if package not in packages or zoo.have(package) for name in
             (maker.__name__ for maker in makers)]
    return names if SOAK else random.Random(SEED).sample(names, count)


class Zoo(unittest.TestCase):
    def test_gradients(self):
        for name in chosen(2):
            for dtype, bound in BOUNDS.items():
                with self.subTest(name, dtype=dtype, seed=SEED):
                    module, kwargs = zoo.make(name, dtype)
                    exported = penstock.export(module, (), kwargs)
                    theirs = run_autograd(module, lambda copy: zoo.loss_of(copy(**kwargs)))  # noqa: B023
                    self.assertLess(worst(run_exported(exported, data_of(module, (), kwargs)), theirs), bound)

    def test_tables_of_bags_in_a_trainer(self):
        """Whose ops PyTorch declares with other results in f32 than in f64; bags may have a weight for each index."""
        class Weighted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.bags = torch.nn.EmbeddingBag(9, 4, mode="sum")
                self.scale = torch.nn.Parameter(torch.rand(3))

            def forward(self, x):
                return self.bags(x, per_sample_weights=self.scale.expand(x.shape)).square().mean()
        for module, batch in (zoo.make("dlrm"), (Weighted(), {"x": torch.randint(9, (4, 3))})):
            for dynamic in sampled((True, False), 1):
                loss, gradients = penstock.trainer(module, batch, microbatches=2, actors=1, dynamic=dynamic).gradients(batch)
                theirs = module(**batch)
                wanted = torch.autograd.grad(theirs, list(module.parameters()))
                self.assertAlmostEqual(loss.item(), theirs.item(), delta=1e-6)
                for (name, _), gradient in zip(module.named_parameters(), wanted):
                    self.assertTrue(torch.allclose(gradients[name], gradient, rtol=1e-4, atol=1e-6), name)

    @unittest.skipUnless(SOAK, "PENSTOCK_SOAK=1")
    def test_several_sizes(self):
        """One export of a model of texts, for other numbers of samples and other lengths."""
        for name in ("gpt2", "llama", "qwen3", "mixtral", "bert", "t5"):
            module, kwargs = zoo.make(name, torch.float64)
            exported = penstock.export(module, (), kwargs, dynamic=True)
            for batch, length in ((2, 12), (3, 9), (5, 17)):
                with self.subTest(name, batch=batch, length=length):
                    data = {**kwargs, **zoo.text(batch, length)}
                    sizes = {symbol: data[s["name"][:-2]].shape[int(s["name"][-1])] for symbol, s in exported.header["symbols"].items()}
                    self.assertTrue(exported.fits(sizes))
                    theirs = run_autograd(module, lambda copy: zoo.loss_of(copy(**data)))  # noqa: B023
                    self.assertLess(worst(run_exported(exported, data, sizes), theirs), 1e-11)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
