# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in bf16 as PyTorch trains it: one JSON line with the seconds of a step. Weights are f32, products run under autocast, AdamW is fused."""
import argparse
import json
import statistics
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.first(x)).chunk(3, -1))
        x = x + self.project(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.places = nn.Embedding(o.vocabulary, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.Sequential(*(Block(o.width, o.heads) for _ in range(o.layers)))
        self.last = nn.LayerNorm(o.width)

    def forward(self, tokens, targets):
        x = self.last(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]]))
        return nn.functional.cross_entropy(nn.functional.linear(x, self.tokens.weight).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "width", "heads", "context", "vocabulary", "microbatches", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="none", help="none, default or reduce-overhead")
    o = parser.parse_args()
    torch.manual_seed(0)
    model = Gpt(o).to(o.device)
    loss_of = model if o.compile == "none" else torch.compile(model, mode=o.compile)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(o.vocabulary, (o.batch, o.context + 1), device=o.device)

    def step():
        for part in tokens.chunk(o.microbatches):
            with torch.autocast(o.device, torch.bfloat16):
                loss = loss_of(part[:, :-1], part[:, 1:]) / o.microbatches
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss)  # the one wait that training has for its log

    seconds = []
    for _ in range(o.steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[len(seconds) // 2 :])
    print(json.dumps({"seconds": median, "tokens_per_second": o.batch * o.context / median}))


if __name__ == "__main__":
    main()
