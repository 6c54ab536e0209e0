# SPDX-License-Identifier: Apache-2.0
"""Adapters of low rank: gradients and steps of AdamW are those of the same model written in PyTorch; the base stays bit for bit.

usage: lora_test.py PENSTOCK   (the program)
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from gradients_test import gpt, read, token_loss
from safetensors.torch import save_file

PENSTOCK = ""
LAYERS, WIDTH, CONTEXT, RANK, ALPHA, STEPS, BATCH = 2, 16, 16, 3, 6, 3, 4
RATE, DECAY = 2.0**-7, 0.125  # numbers that a float32 has
TEXT = bytes(33 + 7 * i % 60 for i in range(CONTEXT)) * 200  # every sample is the same
MATRICES = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}


def begin():
    """The base, and adapters that add something from the start."""
    torch.manual_seed(0)
    out = {"wte.weight": torch.randn(256, WIDTH), "wpe.weight": torch.randn(CONTEXT, WIDTH)}
    norms = ["ln_f"]
    for i in range(LAYERS):
        norms += [f"h.{i}.ln_1", f"h.{i}.ln_2"]
        for name, (rows, columns) in MATRICES.items():
            out[f"h.{i}.{name}.weight"] = 0.3 * torch.randn(rows, columns)
            out[f"h.{i}.{name}.bias"] = 0.1 * torch.randn(columns)
            out[f"h.{i}.{name}.lora_A.weight"] = 0.3 * torch.randn(RANK, rows)
            out[f"h.{i}.{name}.lora_B.weight"] = 0.3 * torch.randn(columns, RANK)
    for norm in norms:
        out[f"{norm}.weight"] = 1 + 0.1 * torch.randn(WIDTH)
        out[f"{norm}.bias"] = 0.1 * torch.randn(WIDTH)
    return {name: value.double() for name, value in out.items()}


def loss_of(p, tokens, targets):
    """GPT's loss where each matrix W is W + alpha/rank * B A; W is stored as [in, out]."""
    merged = dict(p)
    for i in range(LAYERS):
        for name in MATRICES:
            at = f"h.{i}.{name}"
            merged[f"{at}.weight"] = p[f"{at}.weight"] + ALPHA / RANK * (p[f"{at}.lora_B.weight"] @ p[f"{at}.lora_A.weight"]).T
    return token_loss(gpt(merged, tokens, {"layers": LAYERS, "heads": 2}), targets)


def adapters(p):
    return {name: value.requires_grad_() for name, value in p.items() if ".lora_" in name}


class Lora(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "text.txt").write_bytes(TEXT)
        save_file(begin(), self.folder / "begin.safetensors")

    def penstock(self, command, *flags, before=()):
        sets = {"model.layers": LAYERS, "width": WIDTH, "heads": 2, "context": CONTEXT, "lora": RANK, "lora_alpha": ALPHA, "dtype": "f64",
                "learning_rate": RATE, "weight_decay": DECAY, "warmup": 0, "decay": "constant", "clip": 0, "validation": 0, "steps": STEPS,
                "batch": BATCH, "microbatches": 2}  # fmt: skip
        settings = [argument for key, value in sets.items() for argument in ("--set", f"{key}={value}")]
        done = subprocess.run([PENSTOCK, *before, command, "--text", self.folder / "text.txt", "--init", self.folder / "begin.safetensors",
                               *settings, *flags], capture_output=True, text=True, timeout=300)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_gradients(self):
        for number, flags in enumerate([["--schedule", "1f1b"], ["--schedule", "zb-h1"], ["--mesh", "pipe=2,tensor=2"]]):
            dump = self.folder / f"dump{number}"
            self.penstock("check", "--dump", dump, *flags)
            p, batch, found = begin(), read(dump / "batch.safetensors"), read(dump / "gradients_pipelined.safetensors")
            trained = adapters(p)
            loss = loss_of(p, batch["tokens"], batch["targets"])
            loss.backward()
            self.assertLess(abs(loss.item() - json.loads((dump / "losses.json").read_text())["pipelined"]), 1e-10)
            self.assertEqual(found.keys(), trained.keys())
            for name, value in trained.items():
                self.assertLess((found[name] - value.grad).abs().max().item(), 1e-10, name)

    def test_steps_of_adamw(self):
        p = begin()
        trained = adapters(p)
        optimiser = torch.optim.AdamW(trained.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
        tokens = torch.tensor(list(TEXT[: CONTEXT + 1]))[None]
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss_of(p, tokens[:, :-1], tokens[:, 1:]).backward()
            optimiser.step()
        gloo = ["launch", "-n", "2", "--"]
        for number, (before, flags) in enumerate([([], ["--schedule", "1f1b"]), ([], ["--schedule", "zb-h1"]), (gloo, ["--backend", "gloo"]),
                                                  ([], ["--mesh", "pipe=2,data=2", "--set", "zero=2"])]):  # fmt: skip
            out = self.folder / f"run{number}"
            self.penstock("train", "--out", out, *flags, before=before)
            manifest = json.loads((out / f"checkpoint-{STEPS}" / "manifest.json").read_text())
            found = {}
            for file in set(manifest["tensors"].values()):
                found |= read(out / f"checkpoint-{STEPS}" / file)
            for name, value in p.items():
                if ".lora_" not in name:
                    self.assertTrue(torch.equal(found[name], value), name)
                elif name in found:
                    self.assertLess((found[name] - value).abs().max().item(), 1e-10, name)
            self.assertEqual({name for name in found if name.startswith("first:") and ".lora_" not in name}, set())


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
