"""The gradients of `penstock check --dump` are those of the same models written in PyTorch.

usage: gradients_test.py PENSTOCK   (the program)
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import torch
from torch.nn import functional

PENSTOCK = ""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}


def read(path):
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(content[8 + length + begin : 8 + length + end], dtype=DTYPES[entry["dtype"]])
        out[name] = values.reshape(entry["shape"])
    return out


def attention(qkv, heads):
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=-1))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def gpt(p, tokens, model):
    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    def conv(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for i in range(int(model["layers"])):
        x = x + conv(attention(conv(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), int(model["heads"])), f"h.{i}.attn.c_proj")
        inner = functional.gelu(conv(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + conv(inner, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def two_branch(p, tokens, model):
    def linear(x, name):
        return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = left = right = p["embedding.weight"][tokens]
    for i in range(int(model["layers"])):
        left = left + functional.gelu(linear(left, f"left.{i}"))
        norm = functional.layer_norm(right, right.shape[-1:], p[f"right.{i}.norm.weight"], p[f"right.{i}.norm.bias"])
        right = right + attention(linear(norm, f"right.{i}.qkv"), int(model["heads"]))
    return linear(x + functional.gelu(linear(torch.cat([x, left, right], -1), "join")), "head")


class Gradients(unittest.TestCase):
    def compare(self, forward, name, *options):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            arguments = ["--set", f"model.name={name}", "--set", "width=32", "--set", "heads=2", "--set", "context=16", "--batch", "8"]
            command = [PENSTOCK, "check", *arguments, "--dtype", "f64", "--dump", folder, *options]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            losses = json.loads((folder / "losses.json").read_text())
            parameters = {k: v.clone().requires_grad_() for k, v in read(folder / "parameters.safetensors").items()}
            batch = read(folder / "batch.safetensors")
            found = read(folder / "gradients_pipelined.safetensors")
        logits = forward(parameters, batch["tokens"], losses["model"])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
        loss.backward()
        self.assertLess(abs(loss.item() - losses["pipelined"]), 1e-9 * abs(loss.item()))
        self.assertEqual(found.keys(), parameters.keys())
        scale = 0.01 * max(p.grad.abs().max().item() for p in parameters.values())
        for key, parameter in parameters.items():
            difference = (found[key] - parameter.grad).abs().max().item()
            self.assertLess(difference / max(parameter.grad.abs().max().item(), scale), 1e-9, key)

    def test_gpt(self):
        self.compare(gpt, "gpt", "--schedule", "zb-h1", "--microbatches", "4")

    def test_two_branch(self):
        self.compare(two_branch, "two-branch", "--schedule", "interleaved-1f1b", "--chunks", "2", "--microbatches", "4")


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
