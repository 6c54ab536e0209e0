# SPDX-License-Identifier: Apache-2.0
"""Steps of each optimiser are those of PyTorch's, or of its paper's formula, on the same model written in PyTorch.

usage: optimisers_test.py PENSTOCK   (the program)
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
from gradients_test import gpt, read, token_loss, two_branch
from safetensors.torch import save_file

PENSTOCK = ""
LAYERS, WIDTH, CONTEXT, STEPS, BATCH = 2, 16, 16, 5, 4
RATE, DECAY = 2.0**-7, 0.125  # numbers that a float32 has
KEYS = "attn.c_attn.bias"  # has keys' biases, whose gradient is nothing but rounding, as they move all scores of a query alike
TEXT = bytes(33 + 7 * i % 60 for i in range(CONTEXT)) * 200  # every sample is the same


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., 2302.06675."""

    def __init__(self, params):
        super().__init__(params, {"lr": RATE, "betas": (0.9, 0.98), "weight_decay": DECAY})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for theta in group["params"]:
                m, g = self.state[theta].get("m", torch.zeros_like(theta)), theta.grad
                c = beta1 * m + (1 - beta1) * g
                theta -= group["lr"] * (torch.sign(c) + group["weight_decay"] * theta)
                self.state[theta]["m"] = beta2 * m + (1 - beta2) * g


class Muon:
    """PyTorch's for matrices, without its rounding to bf16, and AdamW for the rest."""

    def __init__(self, groups):
        matrices, others = groups
        self.parts = [torch.optim.Muon([matrices], adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW([others], betas=(0.9, 0.98))]

    def step(self):
        with mock.patch.object(torch.Tensor, "bfloat16", lambda x: x.clone()):
            for part in self.parts:
                part.step()


# Beside its optimiser, the keys of [train] that say what PyTorch's have.
ADAM = {"beta2": 0.98, "eps": 1e-7}
OPTIMISERS = {
    "adamw": (lambda g: torch.optim.AdamW(g, betas=(0.9, 0.98), eps=1e-7), ADAM),
    "adam": (lambda g: torch.optim.Adam(g, betas=(0.9, 0.98), eps=1e-7), ADAM),
    "nadam": (lambda g: torch.optim.NAdam(g, betas=(0.9, 0.98), eps=1e-7), ADAM),
    "sgd": (lambda g: torch.optim.SGD(g, momentum=0.75), {"momentum": 0.75}),
    "nesterov": (lambda g: torch.optim.SGD(g, momentum=0.75, nesterov=True), {"momentum": 0.75}),
    "lion": (Lion, {"beta2": 0.98}),
    "adafactor": (torch.optim.Adafactor, {}),
    "muon": (Muon, {"momentum": 0.95, "beta2": 0.98}),
}


def begin():
    torch.manual_seed(0)
    out = {"wte.weight": torch.randn(256, WIDTH), "wpe.weight": torch.randn(CONTEXT, WIDTH), "ln_f.weight": torch.ones(WIDTH), "ln_f.bias": torch.zeros(WIDTH)}
    for i in range(LAYERS):
        for name, (rows, columns) in {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDTH, 4 * WIDTH),
                                      "mlp.c_proj": (4 * WIDTH, WIDTH)}.items():  # fmt: skip
            out[f"h.{i}.{name}.weight"] = 0.3 * torch.randn(rows, columns)
            out[f"h.{i}.{name}.bias"] = 0.1 * torch.randn(columns)
        for norm in ("ln_1", "ln_2"):
            out[f"h.{i}.{norm}.weight"] = 1 + 0.1 * torch.randn(WIDTH)
            out[f"h.{i}.{norm}.bias"] = 0.1 * torch.randn(WIDTH)
    return {name: value.double() for name, value in out.items()}


class Optimisers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # in which PyTorch keeps scalars
        self.addCleanup(torch.set_default_dtype, before)
        (self.folder / "text.txt").write_bytes(TEXT)
        save_file(begin(), self.folder / "begin.safetensors")

    def found(self, optimiser, keys):
        sets = {"model.layers": LAYERS, "width": WIDTH, "heads": 2, "context": CONTEXT, "dtype": "f64", "learning_rate": RATE, "weight_decay": DECAY,
                "warmup": 0, "decay": "constant", "clip": 0, "validation": 0, "steps": STEPS, "batch": BATCH, "microbatches": 2,
                "optimiser": optimiser, **keys}  # fmt: skip
        out = self.folder / optimiser
        done = subprocess.run([PENSTOCK, "train", "--out", out, "--text", self.folder / "text.txt", "--init", self.folder / "begin.safetensors",
                               *(part for key, value in sets.items() for part in ("--set", f"{key}={value}"))],
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        files = set(json.loads((out / f"checkpoint-{STEPS}" / "manifest.json").read_text())["tensors"].values())
        return {name: value for file in files for name, value in read(out / f"checkpoint-{STEPS}" / file).items()}

    def expected(self, make):
        p = begin()
        matrices, others = ([value.requires_grad_() for value in p.values() if (value.dim() == 2) == wanted] for wanted in (True, False))
        optimiser = make([{"params": matrices, "lr": RATE, "weight_decay": DECAY}, {"params": others, "lr": RATE, "weight_decay": 0.0}])
        tokens = torch.tensor(list(TEXT[: CONTEXT + 1]))[None]
        for _ in range(STEPS):
            for value in p.values():
                value.grad = None
            token_loss(gpt(p, tokens[:, :-1], {"layers": LAYERS, "heads": 2}), tokens[:, 1:]).backward()
            optimiser.step()
        return p

    def test_lazy_rows_are_those_of_sparse_adam(self):
        """SparseAdam updates the table, whose rows the second half of the run does not name as the first did; all else goes by Adam."""
        sets = {"model.name": "two-branch", "model.layers": LAYERS, "width": WIDTH, "heads": 2, "context": CONTEXT, "dtype": "f64", "learning_rate": RATE,
                "weight_decay": 0, "eps": 1e-15, "warmup": 0, "decay": "constant", "clip": 0, "validation": 0, "batch": BATCH, "microbatches": 2,
                "optimiser": "adam", "train.lazy_rows": "true"}  # fmt: skip
        flags = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        (self.folder / "other.txt").write_bytes(bytes(b + 30 for b in TEXT))
        texts = [self.folder / "text.txt", self.folder / "other.txt"]

        def done(*arguments):
            out = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=300)
            self.assertEqual(out.returncode, 0, out.stderr)

        done("check", *flags, "--text", texts[0], "--dump", self.folder / "dump")
        begun = {name: value.clone() for name, value in read(self.folder / "dump/parameters.safetensors").items()}
        done("train", *flags, "--text", texts[0], "--init", self.folder / "dump/parameters.safetensors", "--steps", 3, "--out", self.folder / "lazy")
        done("train", *flags, "--text", texts[1], "--changed-text", "--resume", self.folder / "lazy", "--steps", 6, "--out", self.folder / "lazy")
        table = begun["embedding.weight"].requires_grad_()
        others = [value.requires_grad_() for name, value in begun.items() if name != "embedding.weight"]
        numbers = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-15}
        optimisers = [torch.optim.SparseAdam([table], **numbers), torch.optim.Adam(others, **numbers)]
        for step in range(6):
            tokens = torch.tensor(list(texts[step // 3].read_bytes()[: CONTEXT + 1]))[None]
            for optimiser in optimisers:
                optimiser.zero_grad()
            token_loss(two_branch(begun, tokens[:, :-1], {"layers": LAYERS, "heads": 2}), tokens[:, 1:]).backward()
            named = tokens[0, :-1].unique()
            table.grad = torch.sparse_coo_tensor(named[None], table.grad[named], table.shape, check_invariants=True)
            for optimiser in optimisers:
                optimiser.step()
        files = set(json.loads((self.folder / "lazy/checkpoint-6/manifest.json").read_text())["tensors"].values())
        found = {name: value for file in files for name, value in read(self.folder / "lazy/checkpoint-6" / file).items()}
        for name, value in begun.items():
            if not name.endswith("qkv.bias"):  # has keys' biases, as KEYS
                self.assertLess((found[name] - value).abs().max().item(), 1e-8, name)
        state = optimisers[0].state[table]
        for kept, expected in (("first", state["exp_avg"]), ("second", state["exp_avg_sq"])):
            self.assertLess((found[f"{kept}:embedding.weight"] - expected).abs().max().item(), 1e-12, kept)

    def test_steps(self):
        for name, (make, keys) in OPTIMISERS.items():
            with self.subTest(name):
                found = self.found(name, keys)
                # Adafactor's steps are as large for small gradients, whose rounding they carry on.
                bound = 1e-6 if name == "adafactor" else 1e-9
                for parameter, value in self.expected(make).items():
                    if not parameter.endswith(KEYS):
                        self.assertLess((found[parameter] - value).abs().max().item(), bound, parameter)


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
