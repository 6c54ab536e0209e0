# SPDX-License-Identifier: Apache-2.0
"""PipeDream by hand: PyTorch with stashed weights, update by update, has the parameters of `penstock train --schedule pipedream`.

usage: pipedream_test.py PENSTOCK   (the program)
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from gradients_test import read
from safetensors.torch import save_file
from torch.nn import functional

PENSTOCK = ""
STAGES, STEPS, WIDTH, CONTEXT, RATE, MOMENTUM = 4, 20, 16, 32, 0.0625, 0.9
# The rate is a float32 in the program too.
TEXT = bytes(33 + 7 * i % 60 for i in range(CONTEXT)) * 200  # every sample is the same


def begin():
    """By stage: what it has. The first also embeds."""
    torch.manual_seed(0)
    stages = [{f"layers.{i}.weight": 0.3 * torch.randn(256 if i + 1 == STAGES else WIDTH, WIDTH, dtype=torch.float64),
               f"layers.{i}.bias": 0.1 * torch.randn(256 if i + 1 == STAGES else WIDTH, dtype=torch.float64)} for i in range(STAGES)]  # fmt: skip
    stages[0]["embedding.weight"] = torch.randn(256, WIDTH, dtype=torch.float64)
    return stages


def loss_of(stages):
    tokens = torch.tensor(list(TEXT[: CONTEXT + 1]))
    x = functional.embedding(tokens[:-1], stages[0]["embedding.weight"])
    for i, p in enumerate(stages):
        x = functional.linear(x if i == 0 else x.relu(), p[f"layers.{i}.weight"], p[f"layers.{i}.bias"])
    return functional.cross_entropy(x, tokens[1:])


def trained(delays):
    """The parameters after all steps; step k's gradients are made with those of stage i after max(0, k - delays[i]) updates."""
    versions = [[stage] for stage in begin()]
    velocity = [{name: torch.zeros_like(p) for name, p in stage.items()} for stage in begin()]
    for k in range(STEPS):
        read_by_step = [{name: p.clone().requires_grad_() for name, p in of_stage[max(0, k - delay)].items()}
                        for of_stage, delay in zip(versions, delays)]  # fmt: skip
        loss_of(read_by_step).backward()
        for of_stage, stash, v in zip(versions, read_by_step, velocity):
            for name in v:
                v[name] = MOMENTUM * v[name] + stash[name].grad
            of_stage.append({name: of_stage[-1][name] - RATE * v[name] for name in v})
    return {name: p for of_stage in versions for name, p in of_stage[-1].items()}


class PipeDream(unittest.TestCase):
    def penstock(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text.txt").write_bytes(TEXT)
            save_file({name: p for stage in begin() for name, p in stage.items()}, folder / "begin.safetensors")
            sets = {"model.name": "mlp", "layers": STAGES, "width": WIDTH, "context": CONTEXT, "dtype": "f64", "optimiser": "sgd", "momentum": MOMENTUM,
                    "weight_decay": 0, "learning_rate": RATE, "warmup": 0, "decay": "constant", "clip": 0, "validation": 0, "steps": STEPS,
                    "batch": 1, "microbatches": 1, "actors": STAGES}  # fmt: skip
            command = [PENSTOCK, "train", "--text", folder / "text.txt", "--init", folder / "begin.safetensors", "--out", folder / "run", *flags]
            for key, value in sets.items():
                command += ["--set", f"{key}={value}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return {name: p for file in (folder / "run" / f"checkpoint-{STEPS}").glob("*.safetensors") for name, p in read(file).items()}

    def assert_equal(self, expected, *flags):
        found = self.penstock(*flags)
        for name, p in expected.items():
            self.assertLess((found[name] - p).abs().max().item(), 1e-9, name)

    def test_stashed_weights(self):
        late = trained([STAGES - 1 - i for i in range(STAGES)])
        self.assert_equal(late, "--schedule", "pipedream", "--window", str(STEPS))
        in_time = trained([0] * STAGES)
        self.assertGreater(max((late[name] - in_time[name]).abs().max().item() for name in late), 1e-3)
        self.assert_equal(in_time, "--schedule", "1f1b")


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
