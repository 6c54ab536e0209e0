# SPDX-License-Identifier: Apache-2.0
"""PyTorch's part of the demonstration: a schedule's table, a GPT with its weights, and the gradients of its autograd."""

import json
import struct
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn import functional

DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}


def write_zero_bubble_table(path, actors, microbatches):
    """The ZB-V schedule of torch.distributed.pipelining: each rank has two stages, in the shape of a V."""
    stages = [
        SimpleNamespace(
            num_stages=2 * actors, group_size=actors, group_rank=0, stage_index=stage, is_first=False, is_last=False, submod=nn.Identity()
        )
        for stage in (0, 2 * actors - 1)
    ]  # all that the constructor asks of its stages
    get_schedule_class("ZBVZeroBubble")(stages, microbatches, loss_fn=lambda *_: None)._dump_csv(path, format="compute_only")


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is [in, out]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.02 * torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2, whose parameters have the names of the published files; the head is the embedding."""

    def __init__(self, layers, width, heads, context, vocabulary=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def make_gpt(**sizes):
    torch.manual_seed(0)
    return GPT(**sizes).double()


def write_weights(path, module):
    """safetensors: the header's length, the header, and every tensor's bytes one after the other."""
    header, parts, end = {}, [], 0
    for name, tensor in module.state_dict().items():
        parts.append(tensor.contiguous().numpy().tobytes())
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read_tensors(path):
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header, out = json.loads(content[8 : 8 + length]), {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(content[8 + length + begin : 8 + length + end], dtype=DTYPES[entry["dtype"]])
        out[name] = values.reshape(entry["shape"])
    return out


def compare_with_autograd(module, dump):
    """Compares what `penstock check --dump` left with a step of the module: its loss, the relative difference of Penstock's, the largest
    relative difference of a gradient, and whose it is. Against a gradient's largest entry, or 0.01 of the model's: some are zero."""
    batch = read_tensors(dump / "batch.safetensors")
    found = read_tensors(dump / "gradients_pipelined.safetensors")
    logits = module(batch["tokens"])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    if gradients.keys() != found.keys():
        raise ValueError(f"gradients of {sorted(found)}, not of {sorted(gradients)}")
    floor = 0.01 * max(gradient.abs().max().item() for gradient in gradients.values())
    differences = {
        name: (found[name] - gradient).abs().max().item() / max(gradient.abs().max().item(), floor) for name, gradient in gradients.items()
    }
    worst = max(differences, key=differences.get)
    theirs = json.loads((dump / "losses.json").read_text())["pipelined"]
    return loss.item(), abs(theirs - loss.item()) / loss.item(), differences[worst], worst
