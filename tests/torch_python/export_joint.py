# SPDX-License-Identifier: Apache-2.0
"""Writes the joint forward-and-backward graph of a small PyTorch GPT as Penstock's graph text.

usage: export_joint.py FOLDER

FOLDER/graph.txt         the graph that penstock.export makes: data, then parameters, to the loss and the gradient of each parameter;
                         with marks of two stages by module names
FOLDER/tensors.safetensors
                         the inputs by name, and what PyTorch computes: "loss" and "grad:<parameter>"
"""

import json
import re
import struct
import sys
from pathlib import Path

import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import penstock  # noqa: E402

DTYPES = {torch.float64: "F64", torch.int64: "I64"}
STAGES = {"wte": "0", "wpe": "0", "blocks.0": "0", "blocks.1": "1", "norm": "1", "head": "1"}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=17, width=16, heads=2, layers=2, length=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def with_stages(text):
    """Forward ops of a module that has a stage are marked with it; backward ops follow their forward ops."""
    def mark(found):
        origin = found[1]
        stage = [s for module, s in STAGES.items() if origin == module or origin.startswith(module + ".")]
        return f'stage="{stage[0]}", {found[0]}' if stage else found[0]

    return re.sub(r'(?<!phase="backward", )origin="([^"]*)"', mark, text)


def write_safetensors(path, tensors):
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT().double()
    tokens, targets = torch.randint(17, (2, 8)), torch.randint(17, (2, 8))
    (folder / "graph.txt").write_text(with_stages(penstock.export(model, (tokens, targets)).text))
    loss = model(tokens, targets)
    loss.backward()
    tensors = {"tokens": tokens, "targets": targets, "loss": loss}
    for name, parameter in model.named_parameters():
        tensors[name] = parameter
        tensors["grad:" + name] = parameter.grad
    write_safetensors(folder / "tensors.safetensors", tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
