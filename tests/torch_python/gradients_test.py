# SPDX-License-Identifier: Apache-2.0
"""The gradients of `penstock check --dump` are those of the same models written in PyTorch.

usage: gradients_test.py PENSTOCK   (the program)
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from drawn import sampled  # noqa: E402

PENSTOCK = ""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}


def read(path):
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    out = {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(content[8 + length + begin : 8 + length + end], dtype=DTYPES[entry["dtype"]])
        out[name] = values.reshape(entry["shape"])
    return out


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attention(qkv, heads, is_causal=True):
    q, k, v = (split_heads(x, heads) for x in qkv.chunk(3, dim=-1))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2)


# The mean over the targets that count.
def token_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def gpt_loss(p, batch, model):
    return token_loss(gpt(p, batch["tokens"], model), batch["targets"])


# The mixtures' parts are sums over all tokens, and are divided as the loss by the number of targets that count.
def moe_loss(p, batch, model):
    penalties = []

    def feed(x, i):
        if (i + 1) % int(model["every"]) != 0:
            return gpt_mlp(p, x, i)
        y, penalty = mixture(p, x, f"h.{i}.mlp", model)
        penalties.append(penalty)
        return y

    loss = token_loss(gpt(p, batch["tokens"], model, feed), batch["targets"])
    return loss + sum(penalties) / (batch["targets"] != -100).sum()


# Token by token: an expert takes the first choices first, and so many that it has no room.
def mixture(p, x, path, model):
    experts, tokens = int(model["experts"]), x.shape[1] // int(model["groups"])
    capacity = math.ceil(model["capacity_factor"] * 2 * tokens / experts)
    groups = []
    penalty = 0
    for group in x.unflatten(1, (-1, tokens)).flatten(0, 1):
        probabilities = (group @ p[f"{path}.gate.weight"].T).softmax(-1)
        best, chosen = probabilities.topk(2)
        gates, used, rows = best / best.sum(-1, keepdim=True), [0] * experts, [0] * tokens
        for choice in range(2):
            for t in range(tokens):
                expert = chosen[t, choice].item()
                used[expert] += 1
                if used[expert] <= capacity:
                    weights = [p[f"{path}.experts.{name}"][expert] for name in ["c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias"]]
                    hidden = functional.gelu(group[t] @ weights[0] + weights[1], approximate="tanh")
                    rows[t] = rows[t] + gates[t, choice] * (hidden @ weights[2] + weights[3])
        groups.append(torch.stack([row + torch.zeros_like(group[0]) for row in rows]))
        first = functional.one_hot(chosen[:, 0], experts).double().mean(0)
        penalty = penalty + model["balance"] * tokens * experts * (first * probabilities.mean(0)).sum()
    return torch.stack(groups).reshape(x.shape), penalty


def two_branch_loss(p, batch, model):
    return token_loss(two_branch(p, batch["tokens"], model), batch["targets"])


def chain(x, p, prefix, layers):
    for i in range(layers):
        x = functional.relu(functional.linear(x, p[f"{prefix}{i}.weight"]))
    return x


def candle_uno_loss(p, batch, model):
    ends = [chain(batch[f"input.{b}"], p, f"branch.{b}.layer.", int(model["layers"])) for b in range(int(model["branches"]))]
    return functional.mse_loss(functional.linear(torch.cat(ends, 1), p["head.weight"]), batch["target"])


def dlrm_loss(p, batch, model):
    ends = []
    for b in range(int(model["branches"])):
        ends.append(functional.embedding(batch[f"sparse.{b}"], p[f"emb_l.{b}.weight"]).flatten(1))
        ends.append(chain(batch[f"dense.{b}"], p, f"bot_l.{b}.", int(model["layers"])))
    x = chain(torch.cat(ends, 1), p, "top_l.", int(model["post"]))
    logits = functional.linear(x, p[f"top_l.{int(model['post'])}.weight"])
    return functional.binary_cross_entropy_with_logits(logits, batch["click"])


def multimodal_loss(p, batch, model):
    def linear(x, name):
        return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    branches, heads = int(model["branches"]), int(model["heads"])
    length = int(model["context"]) // (branches + 1)
    ends = []
    for b in range(branches):
        x = p[f"branch.{b}.embedding.weight"][batch["tokens"][:, b * length : (b + 1) * length]] + p[f"branch.{b}.position.weight"]
        for i in range(int(model["layers"])):
            at = f"branch.{b}.layer.{i}"
            x = x + linear(attention(linear(norm(x, f"{at}.attn.norm"), f"{at}.attn.qkv"), heads, is_causal=False), f"{at}.attn.out")
            x = x + linear(functional.gelu(linear(norm(x, f"{at}.up.norm"), f"{at}.up")), f"{at}.down")
        ends.append(x)
    begin = branches * length - 1
    return token_loss(linear(torch.cat(ends, -1), "head"), batch["targets"][:, begin : begin + length])


# The paper's formula, which its implementations share.
def relative_buckets(length, buckets, distance, both_ways):
    offsets = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    if both_ways:
        buckets //= 2
    out = (offsets > 0) * buckets if both_ways else torch.zeros_like(offsets)
    away = offsets.abs() if both_ways else (-offsets).clamp(min=0)
    exact = buckets // 2
    far = exact + (torch.log(away.clamp(min=1).double() / exact) / math.log(distance / exact) * (buckets - exact)).long()
    return out + torch.where(away < exact, away, far.clamp(max=buckets - 1))


def t5_loss(p, batch, model):
    heads, half = int(model["heads"]), int(model["context"]) // 2

    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * p[f"{name}.weight"]

    def attend(x, memory, name, bias):
        q, k, v = (split_heads(functional.linear(y, p[f"{name}.{part}.weight"]), heads) for y, part in [(x, "q"), (memory, "k"), (memory, "v")])
        weights = torch.softmax(q @ k.transpose(2, 3) + bias, -1)
        return functional.linear((weights @ v).transpose(1, 2).flatten(2), p[f"{name}.o.weight"])

    def stack(x, name, memory):
        table = p[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = table[relative_buckets(half, int(model["buckets"]), int(model["distance"]), memory is None)].permute(2, 0, 1)
        if memory is not None:
            bias = bias.masked_fill(torch.ones(half, half, dtype=torch.bool).triu(1), -math.inf)
        for i in range(int(model["layers"])):
            at = f"{name}.block.{i}.layer"
            inner = norm(x, f"{at}.0.layer_norm")
            x = x + attend(inner, inner, f"{at}.0.SelfAttention", bias)
            if memory is not None:
                x = x + attend(norm(x, f"{at}.1.layer_norm"), memory, f"{at}.1.EncDecAttention", 0)
            last = f"{at}.{1 if memory is None else 2}"
            hidden = functional.relu(functional.linear(norm(x, f"{last}.layer_norm"), p[f"{last}.DenseReluDense.wi.weight"]))
            x = x + functional.linear(hidden, p[f"{last}.DenseReluDense.wo.weight"])
        return norm(x, f"{name}.final_layer_norm")

    embedded = p["shared.weight"][batch["tokens"]]
    x = stack(embedded[:, half:], "decoder", stack(embedded[:, :half], "encoder", None))
    logits = functional.linear(x * x.shape[-1] ** -0.5, p["shared.weight"])
    return token_loss(logits, batch["targets"][:, half:])


def t5_loss_with_adapters(p, batch, model):
    """Each matrix W is W + alpha/rank * B A."""
    merged = dict(p)
    for name in p:
        if name.endswith(".lora_A.weight"):
            at = name.removesuffix(".lora_A.weight")
            merged[f"{at}.weight"] = p[f"{at}.weight"] + model["lora_alpha"] / model["lora"] * p[f"{at}.lora_B.weight"] @ p[name]
    return t5_loss(merged, batch, model)


def vgg(p, x, model):
    number = 0
    for convolutions in {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3)}[int(model["depth"])]:
        for _ in range(convolutions):
            x = functional.relu(functional.conv2d(x, p[f"features.{number}.weight"], p[f"features.{number}.bias"], padding=1))
            number += 2
        x = functional.max_pool2d(x, 2)
        number += 1
    x = x.flatten(1)
    for i in (0, 3, 6):
        x = functional.linear(x if i == 0 else functional.relu(x), p[f"classifier.{i}.weight"], p[f"classifier.{i}.bias"])
    return x


def resnet(p, x, model):
    def normed(x, conv, bn, **options):
        x = functional.conv2d(x, p[f"{conv}.weight"], **options)
        return functional.batch_norm(x, None, None, p[f"{bn}.weight"], p[f"{bn}.bias"], training=True)

    x = functional.max_pool2d(functional.relu(normed(x, "conv1", "bn1", stride=2, padding=3)), 3, 2, 1)
    for group, blocks in enumerate(model["blocks"].split(",")):
        for i in range(int(blocks)):
            at, stride = f"layer{group + 1}.{i}", 2 if i == 0 and group > 0 else 1
            y = functional.relu(normed(x, f"{at}.conv1", f"{at}.bn1"))
            y = functional.relu(normed(y, f"{at}.conv2", f"{at}.bn2", stride=stride, padding=1))
            y = normed(y, f"{at}.conv3", f"{at}.bn3")
            x = functional.relu(y + (normed(x, f"{at}.downsample.0", f"{at}.downsample.1", stride=stride) if i == 0 else x))
    return functional.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def vgg_loss(p, batch, model):
    return functional.cross_entropy(vgg(p, batch["image"], model), batch["label"])


# A batch norm sees one of the four micro-batches at a time.
def resnet_loss(p, batch, model):
    parts = zip(batch["image"].chunk(4), batch["label"].chunk(4))
    return sum(functional.cross_entropy(resnet(p, image, model), label) for image, label in parts) / 4


def latent_diffusion_latents(p, image, model, pool=2):
    patch = int(model["patch"]) // 2
    means = functional.avg_pool2d(image, pool)
    x = functional.unfold(means, patch, stride=patch).transpose(1, 2)
    for i in range(int(model["image_layers"])):
        v = p[f"image.reflection.{i}"]
        x = x @ (torch.eye(len(v), dtype=v.dtype) - 2 * torch.outer(v, v) / (v @ v))
    return x


def latent_diffusion_loss(p, batch, model):
    heads, words, classes = int(model["heads"]), int(model["caption"]), int(model["classes"])

    def linear(x, name):
        return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    def modulated(x, shift, scale):
        return functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift

    label = torch.where(batch["keep"] < model["condition_dropout"], classes, batch["label"])
    text = p["text.embedding.weight"].unflatten(0, (classes + 1, words))[label]
    for i in range(int(model["text_layers"])):
        at = f"text.layer.{i}"
        text = text + linear(attention(linear(norm(text, f"{at}.attn.norm"), f"{at}.attn.qkv"), heads, is_causal=False), f"{at}.attn.out")
        text = text + linear(functional.gelu(linear(norm(text, f"{at}.up.norm"), f"{at}.up")), f"{at}.down")
    text = norm(text, "text.norm").mean(1)

    levels, width = int(model["noise_levels"]), int(model["width"])
    angle = ((batch["level"].double() + 1) / levels * 0.95 * math.pi / 2)[:, None, None]
    rates = 10000 ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2))
    waves = (batch["level"].double() * 1000 / levels)[:, None] * rates

    def noise_of(noisy, first=None, at=""):
        x = linear(noisy if first is None else torch.cat([noisy, first], 2), f"{at}in") + p[f"{at}position.weight"]
        time = linear(functional.silu(linear(torch.cat([waves.sin(), waves.cos()], 1), f"{at}time.in")), f"{at}time.out")
        condition = functional.silu(time + linear(text, f"{at}condition"))
        for i in range(int(model["layers"])):
            layer = f"{at}layer.{i}"
            m = linear(condition, f"{layer}.modulation")[:, None].chunk(6, -1)
            mixed = attention(linear(modulated(x, m[0], m[1]), f"{layer}.attn.qkv"), heads, is_causal=False)
            x = x + (1 + m[2]) * linear(mixed, f"{layer}.attn.out")
            x = x + (1 + m[5]) * linear(functional.gelu(linear(modulated(x, m[3], m[4]), f"{layer}.up")), f"{layer}.down")
        return angle.sin() * noisy + angle.cos() * linear(norm(x, f"{at}norm"), f"{at}out")

    def noised(latents, noise):
        return angle.cos() * latents + angle.sin() * noise

    def loss(latents, noise, first=None, at=""):
        return functional.mse_loss(noise_of(noised(latents, noise), first, at), noise)

    latents = latent_diffusion_latents(p, batch["image"], model)
    if model["self_conditioning"] > 0:
        noisy = noised(latents, batch["noise"])
        with torch.no_grad():
            clean = (noisy - angle.sin() * noise_of(noisy, torch.zeros_like(noisy))) / angle.cos()
        reads = batch["self"][:, None, None] < model["self_conditioning"]
        return loss(latents, batch["noise"], torch.where(reads, clean.clamp(-4, 4), 0.0))
    if int(model["backbones"]) == 1:
        return loss(latents, batch["noise"])
    half = latent_diffusion_latents(p, batch["image"], model, pool=4)
    side = math.isqrt(half.shape[1])
    enlarged = functional.interpolate(half.transpose(1, 2).unflatten(2, (side, side)), scale_factor=2).flatten(2).transpose(1, 2)
    noises = batch["noise"].split([half.shape[1], latents.shape[1]], 1)
    return loss(half, noises[0]) + loss(latents, noises[1], enlarged, "fine.")


def is_frozen(name):
    return name.startswith(("text.", "image."))


def gpt_mlp(p, x, i):
    inner = functional.gelu(x @ p[f"h.{i}.mlp.c_fc.weight"] + p[f"h.{i}.mlp.c_fc.bias"], approximate="tanh")
    return inner @ p[f"h.{i}.mlp.c_proj.weight"] + p[f"h.{i}.mlp.c_proj.bias"]


def gpt(p, tokens, model, feed=None):
    feed = feed or (lambda x, i: gpt_mlp(p, x, i))

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    def conv(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for i in range(int(model["layers"])):
        x = x + conv(attention(conv(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), int(model["heads"])), f"h.{i}.attn.c_proj")
        x = x + feed(norm(x, f"h.{i}.ln_2"), i)
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
    def compare(self, loss_of, name, *options, within=1e-9):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            settings = [argument for option in options for argument in ["--set", option]]
            command = [PENSTOCK, "check", "--set", f"model.name={name}", "--batch", "8", *settings, "--dtype", "f64", "--dump", folder]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            losses = json.loads((folder / "losses.json").read_text())
            everything = {k: v.clone() for k, v in read(folder / "parameters.safetensors").items()}
            batch = read(folder / "batch.safetensors")
            found = read(folder / "gradients_pipelined.safetensors")
        adapts = any(".lora_" in parameter for parameter in everything)
        frozen = is_frozen if name == "latent_diffusion" else lambda parameter: adapts and ".lora_" not in parameter
        parameters = {k: v.requires_grad_() for k, v in everything.items() if not frozen(k)}
        loss = loss_of(everything, batch, losses["model"])
        loss.backward()
        self.assertLess(abs(loss.item() - losses["pipelined"]), within * abs(loss.item()))
        self.assertEqual(found.keys(), parameters.keys())
        scale = 0.01 * max(p.grad.abs().max().item() for p in parameters.values())
        for key, parameter in parameters.items():
            difference = (found[key] - parameter.grad).abs().max().item()
            self.assertLess(difference / max(parameter.grad.abs().max().item(), scale), within, key)

    def test_gpt(self):
        self.compare(gpt_loss, "gpt", "width=32", "heads=2", "context=16", "schedule=zb-h1", "microbatches=4")

    def test_moe(self):
        sizes = ["width=16", "heads=2", "context=16", "balance=0.5", "capacity_factor=0.75"]
        self.compare(moe_loss, "moe", *sizes, "groups=2", "experts=3", "schedule=zb-h1", "microbatches=4")
        self.compare(moe_loss, "moe", *sizes, "schedule=1f1b", "expert=2", "microbatches=2")

    def test_two_branch(self):
        self.compare(
            two_branch_loss, "two-branch", "width=32", "heads=2", "context=16", "schedule=interleaved-1f1b", "chunks=2", "microbatches=4"
        )

    def test_state_in_shares(self):
        sizes = ["width=32", "heads=2", "context=16", "model.layers=4", "pipeline.data=2"]
        zeropp = ["schedule=zeropp", "chunks=2", "microbatches=4"]
        for unit in sampled((1, 2, 4), 1):
            self.compare(gpt_loss, "gpt", *sizes, *zeropp, f"unit={unit}")
        for zero in sampled((1, 2, 3), 1):
            self.compare(gpt_loss, "gpt", *sizes, "schedule=1f1b", "microbatches=4", f"zero={zero}")
            self.compare(two_branch_loss, "two-branch", *sizes[:3], *sizes[4:], *zeropp, f"zero={zero}")

    def test_candle_uno(self):
        self.compare(candle_uno_loss, "candle-uno", "branches=3", "schedule=zb-h1", "actors=4", "microbatches=4")

    def test_dlrm(self):
        self.compare(dlrm_loss, "dlrm", "branches=3", "schedule=1f1b", "actors=4", "microbatches=4")

    def test_multimodal(self):
        self.compare(multimodal_loss, "multimodal", "context=40", "schedule=zb-h1", "microbatches=4")

    def test_vgg(self):
        self.compare(vgg_loss, "vgg", "depth=16", "width=4", "schedule=zb-h1", "actors=4", "microbatches=4")

    def test_resnet(self):
        options = ["blocks=2,1,1,2", "width=4", "schedule=interleaved-1f1b", "chunks=2", "microbatches=4"]
        self.compare(resnet_loss, "resnet", *options)

    def test_t5(self):
        sizes = ["width=32", "heads=2", "context=96", "schedule=1f1b", "actors=4", "microbatches=4"]
        self.compare(t5_loss, "t5", *sizes)
        self.compare(t5_loss_with_adapters, "t5", *sizes, "lora=3", "lora_alpha=6")

    def test_latent_diffusion(self):
        sizes = ["image=16", "patch=4", "width=16", "text_width=8", "heads=2", "condition_dropout=0.4", "microbatches=4"]
        plans = (
            ["schedule=sequential", "actors=1"],
            ["schedule=zb-h1", "actors=3"],
            ["schedule=1f1b", "actors=5", "frozen_stages=3"],
            ["schedule=interleaved-1f1b", "chunks=2"],
            ["schedule=sequential", "actors=1", "backbones=2"],
            ["schedule=bidirectional", "actors=2", "chunks=2", "backbones=2", "frozen=[1,1]"],
            ["schedule=sequential", "actors=1", "self_conditioning=0.5"],
            ["schedule=1f1b", "actors=2", "self_conditioning=0.5", "frozen=[1,1]"],
            ["schedule=gpipe", "actors=3", "chunks=2", "self_conditioning=1"],
        )
        for options in sampled(plans, 2):
            self.compare(latent_diffusion_loss, "latent_diffusion", *sizes, *options, within=1e-10)


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
