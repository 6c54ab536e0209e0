#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel PyTorch on the reference work (src/front/models/reference.cpp), over Gloo: bench/tensor_peer.py's other side.

    OMP_NUM_THREADS=1 .venv/bin/python -m torch.distributed.run --nproc-per-node=2 bench/torch_tensor_peer.py tp 64 1 DUMP TEXT time

The arguments are a way (tp, or sp: the residual stream split over the sequence, too), the width, the micro-batches of a step, what `penstock check
--dump` wrote for that work, a text of one batch, and what is wanted: time, or memory. Trains on the text from the dumped parameters. Every rank prints
one JSON line: the median seconds of a step after the warm-up, the losses of all steps and the collectives of one; or the most bytes of tensors at once.
"""
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module
from torch.nn import functional

from peer_memory import peak_of
from torch_data_peer import dumped_name, read_tensors
from torch_peer import CONTEXT, LAYERS, STEPS, WARM, stage_module


def plan_of(way):
    """As Megatron splits it: embedding and head over the vocabulary, attention over heads, the perceptron over its hidden channels."""
    stream = Shard(1) if way == "sp" else Replicate()  # the residual stream
    plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
            str(LAYERS + 1): ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False)}
    for block in range(1, LAYERS + 1):
        for part in ("qkv", "widen"):
            plan[f"{block}.{part}"] = ColwiseParallel(input_layouts=stream)
        for part in ("out", "narrow"):
            plan[f"{block}.{part}"] = RowwiseParallel(output_layouts=stream)
        if way == "sp":
            plan |= {f"{block}.{norm}": SequenceParallel(use_local_output=True) for norm in ("norm1", "norm2")}
    return plan


def by_member(value, ranks):
    """Rows of packed queries, keys and values so ordered that equal shares of them are heads of all three."""
    return torch.cat([part for member in range(ranks) for part in (third.chunk(ranks)[member] for third in value.chunk(3))])


def split_module(way, width, folder):
    ranks = dist.get_world_size()
    module, parameters = stage_module(0, 1, width), read_tensors(folder / "parameters.safetensors")
    module = module.to(next(iter(parameters.values())).dtype)
    values = {name: parameters[dumped_name(name)] for name in module.state_dict()}
    module.load_state_dict({name: by_member(value, ranks) if ".qkv." in name else value for name, value in values.items()})
    for block in module[1 : LAYERS + 1]:
        block.heads //= ranks
    return parallelize_module(module, init_device_mesh("cpu", (ranks,)), plan_of(way))


def optimiser_of(module):
    """As Penstock's: only matrices decay. One fused call takes parameters of one kind."""
    groups = {}
    for parameter in module.parameters():
        groups.setdefault((isinstance(parameter, DTensor), parameter.ndim > 1), []).append(parameter)
    settings = [{"params": group, "weight_decay": 0.1 if matrices else 0.0} for (_, matrices), group in groups.items()]
    return torch.optim.AdamW(settings, 1e-3, (0.9, 0.95), fused=True)


class Training:
    def __init__(self, way, width, count, folder, text):
        self.module = split_module(way, width, folder)
        letters = torch.tensor(list(text.read_bytes()))
        tokens, targets = (part.view(-1, CONTEXT) for part in (letters[:-1], letters[1:]))
        self.parts, self.known = list(zip(tokens.chunk(count), targets.chunk(count))), targets.numel()
        self.optimiser = optimiser_of(self.module)

    def step(self):
        self.optimiser.zero_grad()
        total = 0.0
        for tokens, targets in self.parts:
            with loss_parallel():
                loss = functional.cross_entropy(self.module(tokens).flatten(0, 1), targets.flatten(), reduction="sum") / self.known
                loss.backward()
            total += loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()
        self.optimiser.step()
        return total


def timed(training):
    seconds, losses = [], []
    for _ in range(STEPS):
        dist.barrier()
        begin = time.perf_counter()
        losses.append(training.step())
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    counted = CommDebugMode()
    with counted:
        training.step()
    collectives = {str(kind).split(".")[-1]: count for kind, count in counted.get_comm_counts().items()}
    return {"seconds": statistics.median(seconds[WARM:]), "losses": losses, "collectives": sum(collectives.values()),
            "kinds": " ".join(f"{kind} {count}" for kind, count in sorted(collectives.items()))}


def two_steps(training):
    """From the second on nothing new is kept."""
    for _ in range(2):
        training.step()


def main(way, width, count, folder, text, wanted):
    dist.init_process_group("gloo")
    make = lambda: Training(way, int(width), int(count), pathlib.Path(folder), pathlib.Path(text))
    report = timed(make()) if wanted == "time" else {"tensor_bytes": peak_of(lambda: two_steps(make()))}
    print(json.dumps({"peer": way, **report}), flush=True)
    dist.barrier()
    # Without taking the group down: now and then its destructor joins a thread that waits for the interpreter's lock.
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:7])
