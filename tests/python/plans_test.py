# SPDX-License-Identifier: Apache-2.0
"""Models as users have them, trained by plans: loss and gradients are autograd's under every schedule.

usage: plans_test.py   Two models, drawn by PENSTOCK_SEED, each under two plans; with PENSTOCK_SOAK=1 all models under all plans.
"""

import random
import unittest

import kept_exports  # noqa: F401
import torch
import zoo
from evaluate import SOAK, drawn_seed  # finds the package
from torch.utils._pytree import tree_map_only

import penstock

SEED = drawn_seed()
PLANS = [(schedule, actors) for schedule in ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v") for actors in (2, 4)]
MICROBATCHES = 4
# Bounds of the relative difference of all gradients together. Some modules compute in f32 whatever their own dtype is.
BOUND = {"gpt2": 1e-6, "qwen3": 1e-6, "llama": 1e-6, "mixtral": 1e-6, "t5": 1e-6, "mamba": 1e-6}


def joined(*parts):
    """The same arguments of several calls, one behind the other along dim 0."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: joined(*(part[key] for part in parts)) for key in first}
    return [joined(*each) for each in zip(*parts)] if isinstance(first, list) else first


def drawn(name):
    """The model in f64, and four calls' arguments as one batch."""
    module, _ = zoo.make(name, torch.float64)
    return module, joined(*(zoo.make(name, torch.float64, seed)[1] for seed in range(MICROBATCHES)))


class Plans(unittest.TestCase):
    def test_gradients(self):
        packages = {"transformers", "timm", "torchvision"}
        names = [maker.__name__ for package, makers in zoo.MODELS.items() if package not in packages or zoo.have(package) for maker in makers]
        source = random.Random(SEED)
        for name in names if SOAK else source.sample(names, min(2, len(names))):
            module, batch = drawn(name)
            for schedule, actors in PLANS if SOAK else source.sample(PLANS, 2):
                with self.subTest(name, schedule=schedule, actors=actors, seed=SEED):
                    stages = actors * (2 if schedule in ("interleaved-1f1b", "zb-v") else 1)
                    try:
                        found = penstock.check(module, batch, microbatches=MICROBATCHES, schedule=schedule, actors=actors,
                                               in_parts=True if name == "clip" else None)  # which compares the samples of a micro-batch
                    except penstock.PenstockError as error:
                        self.assertIn(f"cannot be cut into {stages} stages", str(error))
                        continue
                    self.assertLess(found.gradients, BOUND.get(name, 1e-11), found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
