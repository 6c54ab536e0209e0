# SPDX-License-Identifier: Apache-2.0
"""A module as users write them, of norms, gates and residuals by hand: one JSON line with the seconds of a step and its losses, by Penstock with
and without fused chains, by PyTorch as it is or compiled."""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.gate, self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        gate = self.gate(h)
        return x + 0.5 * self.down(gate * torch.sigmoid(1.702 * gate) * self.up(h))


class Model(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.blocks, self.out = nn.Sequential(*(Block(width) for _ in range(layers))), nn.Linear(width, width)

    def forward(self, x, target):
        y = self.out(self.blocks(x))
        y = y - y.amax(-1, keepdim=True)
        return ((y - y.exp().sum(-1, keepdim=True).log() - target) ** 2).mean()


def penstock_step(o, model, optimiser, batch):
    sys.path.insert(0, f"{o.build}/python")
    import penstock

    return penstock.trainer(model, batch, optimizer=optimiser, actors=1, microbatches=1, device=o.device, fuse=o.way == "fused", autocast=torch.bfloat16)


def torch_step(o, model, optimiser):
    model.to(o.device)
    loss_of = torch.compile(model) if o.way == "compiled" else model

    def step(batch):
        with torch.autocast(o.device, torch.bfloat16):
            loss = loss_of(*batch)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("single", "fused", "eager", "compiled"), required=True)
    for name in ("layers", "width", "rows", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--build", required=True)
    o = parser.parse_args()
    torch.manual_seed(0)
    model = Model(o.layers, o.width)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(o.rows, o.width), torch.randn(o.rows, o.width)
    if o.way in ("single", "fused"):
        step = penstock_step(o, model, optimiser, batch)
    else:
        step, batch = torch_step(o, model, optimiser), tuple(tensor.to(o.device) for tensor in batch)
    seconds, losses = [], []
    for _ in range(o.steps):
        begin = time.perf_counter()
        losses.append(float(step(batch)))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": statistics.median(seconds[len(seconds) // 2 :]), "first": seconds[0], "losses": losses}))


if __name__ == "__main__":
    main()
