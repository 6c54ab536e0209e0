#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining, or plain PyTorch, on the reference work (src/front/models/reference.cpp): bench/peer.py's other side.

    OMP_NUM_THREADS=1 .venv/bin/python bench/torch_peer.py sequential 64 16 2 [f32|autocast|bf16 [8 [even]]]
    OMP_NUM_THREADS=1 .venv/bin/python -m torch.distributed.run --nproc-per-node=2 bench/torch_peer.py 1F1B 64 16 2

The arguments are a schedule, the width, the micro-batches of a step, the sequences of each, how it computes (in f32, with bf16 autocast, or as a
model of bf16), its blocks, and how many each stage has (even, or 5+3). Every rank prints one JSON line: the median
seconds of a step after the warm-up, and its largest resident set.
"""
import contextlib
import itertools
import json
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.nn import functional

LAYERS, HEADS, CONTEXT, VOCABULARY = 8, 4, 128, 2048
STEPS, WARM = 9, 3
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = HEADS  # that this process computes
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.widen, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)]
        x = x + self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))


def stage_module(stage, stages, width, dtype="f32", layers=LAYERS, cut="even"):
    """Its share of the blocks; the first stage has the embedding too, the last one the head."""
    ends = [layers * (s + 1) // stages for s in range(stages)] if cut == "even" else list(itertools.accumulate(map(int, cut.split("+"))))
    if len(ends) != stages or ends[-1] != layers:
        sys.exit(f"{cut} are not {layers} blocks in {stages} stages")
    blocks = [Block(width) for _ in range(ends[stage] - (ends[stage - 1] if stage else 0))]
    first = [nn.Embedding(VOCABULARY, width)] if stage == 0 else []
    last = [nn.Linear(width, VOCABULARY)] if stage == stages - 1 else []
    module = nn.Sequential(*first, *blocks, *last)
    return module.to(torch.bfloat16) if dtype == "bf16" else module


def computing(dtype):
    return torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else contextlib.nullcontext()


def mean_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def stages_of(name, rank, ranks):
    """The stages of a rank, and how many there are."""
    if issubclass(get_schedule_class(name), PipelineScheduleSingle):
        return [rank], ranks
    return [rank, 2 * ranks - 1 - rank if name in V_SHAPED else ranks + rank], 2 * ranks


def train(name, modules, step, between=lambda: None):
    optimiser = torch.optim.AdamW([p for module in modules for p in module.parameters()], 1e-3, foreach=False)
    seconds = []
    for _ in range(STEPS):
        between()
        begin = time.perf_counter()
        optimiser.zero_grad()
        step()
        optimiser.step()
        between()
        seconds.append(time.perf_counter() - begin)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"peer": name, "seconds": statistics.median(seconds[WARM:]), "rss_mb": resident}), flush=True)


def sequential(width, count, size, dtype="f32", layers=LAYERS, cut="even"):
    module, tokens = stage_module(0, 1, width, dtype, layers), torch.randint(VOCABULARY, (count * size, CONTEXT))

    def step():
        for part in tokens.chunk(count):
            with computing(dtype):
                loss = mean_loss(module(part), part) / count
            loss.backward()

    train("sequential", [module], step)


def pipelined(name, width, count, size, dtype="f32", layers=LAYERS, cut="even"):
    dist.init_process_group("gloo")
    mine, stages = stages_of(name, dist.get_rank(), dist.get_world_size())
    modules = [stage_module(stage, stages, width, dtype, layers, cut) for stage in mine]
    parts = [PipelineStage(module, stage, stages, torch.device("cpu")) for stage, module in zip(mine, modules)]
    single = issubclass(get_schedule_class(name), PipelineScheduleSingle)
    schedule = get_schedule_class(name)(parts[0] if single else parts, count, loss_fn=mean_loss)
    tokens = torch.randint(VOCABULARY, (count * size, CONTEXT))
    inputs = [tokens] if 0 in mine else []
    last = {"target": tokens, "losses": []} if stages - 1 in mine else {}

    def step():
        with computing(dtype):
            schedule.step(*inputs, **last)

    train(name, modules, step, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    how, work = sys.argv[1], [int(size) for size in sys.argv[2:5]] + sys.argv[5:6] + [int(layers) for layers in sys.argv[6:7]] + sys.argv[7:8]
    sequential(*work) if how == "sequential" else pipelined(how, *work)
