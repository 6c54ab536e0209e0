#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel PyTorch on the reference work (src/front/models/reference.cpp), over Gloo: bench/data_peer.py's other side.

    OMP_NUM_THREADS=1 .venv/bin/python -m torch.distributed.run --nproc-per-node=2 bench/torch_data_peer.py ddp 64 2 8 DUMP [f32|autocast|bf16]

The arguments are a way, the width, the micro-batches of a step, the sequences that each process takes of each, what `penstock check --dump` wrote for
that work, and how it computes (bench/torch_peer.py). Trains on its batch from its parameters. Every rank prints one JSON line: the median seconds of a step after the warm-up, and how far the first
step's loss and gradients are from the dumped ones.
"""
import contextlib
import json
import os
import pathlib
import statistics
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_peer import LAYERS, STEPS, WARM, computing, stage_module

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I32": torch.int32, "I64": torch.int64}
NAMES = {"widen": "mlp.0", "narrow": "mlp.2"}  # of a block, in Penstock's model


def read_tensors(path):
    """The tensors of a safetensors file, by name."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    data, tensors = bytearray(content[8 + length :]), {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors


def dumped_name(name):
    """The name in the dump of a parameter of stage_module(0, 1, width): embedding, blocks, head."""
    place, rest = name.split(".", 1)
    if place == "0":
        return "embedding." + rest
    if int(place) > LAYERS:
        return "head." + rest
    part, kind = rest.rsplit(".", 1)
    return f"blocks.{int(place) - 1}.{NAMES.get(part, part)}.{kind}"


class Replicated:
    """DistributedDataParallel; gradients are reduced behind the last micro-batch alone, which a static graph does not allow in its first step."""

    def __init__(self, module, bucket_mb, count):
        self.module = DistributedDataParallel(module, gradient_as_bucket_view=True, static_graph=count == 1, bucket_cap_mb=bucket_mb)

    def context(self, last):
        return contextlib.nullcontext() if last else self.module.no_sync()


class Sharded:
    """FSDP2: a group of parameters per block, one of the embedding and one of the head. `kept`: parameters stay gathered between forward and backward."""

    def __init__(self, module, kept, reduced_once):
        for part in module:
            fully_shard(part, reshard_after_forward=not kept)
        self.module, self.reduced_once = fully_shard(module), reduced_once

    def context(self, last):
        if self.reduced_once:
            self.module.set_requires_gradient_sync(last)
        self.module.set_is_last_backward(last)
        return contextlib.nullcontext()


WAYS = {
    "ddp": lambda module, count: Replicated(module, 25, count),
    "ddp-1mb": lambda module, count: Replicated(module, 1, count),
    "fsdp": lambda module, _: Sharded(module, False, False),
    "fsdp-once": lambda module, _: Sharded(module, False, True),
    "fsdp-kept": lambda module, _: Sharded(module, True, True),
}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def differences(module, loss, folder):
    """The difference of the mean loss, and the largest of a gradient over the largest entry of all."""
    dumped, expected = json.loads((folder / "losses.json").read_text()), read_tensors(folder / "gradients_sequential.safetensors")
    dist.all_reduce(loss)
    found = {dumped_name(name.removeprefix("module.")): whole(p.grad).float() for name, p in module.named_parameters()}
    scale = max(value.abs().max() for value in expected.values())
    worst = max((found[name] - value).abs().max() for name, value in expected.items())
    return {"loss_difference": abs(loss.item() / dist.get_world_size() - dumped["sequential"]), "gradient_difference": (worst / scale).item()}


def main(way, width, count, size, folder, dtype):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module, parameters = stage_module(0, 1, width, dtype), read_tensors(folder / "parameters.safetensors")
    module.load_state_dict({name: parameters[dumped_name(name)] for name in module.state_dict()})
    batch = read_tensors(folder / "batch.safetensors")
    known = (batch["targets"] >= 0).sum() / ranks  # DistributedDataParallel and FSDP2 average over the processes
    tokens, targets = (batch[name].view(count, ranks, size, -1)[:, rank] for name in ("tokens", "targets"))
    trained = WAYS[way](module, count)
    optimiser = torch.optim.AdamW(trained.module.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, report = [], {}
    for step in range(STEPS):
        dist.barrier()
        begin = time.perf_counter()
        optimiser.zero_grad()
        total = torch.zeros(())
        for part in range(count):
            with trained.context(part == count - 1):
                with computing(dtype):
                    logits = trained.module(tokens[part])
                    loss = functional.cross_entropy(logits.flatten(0, 1), targets[part].flatten(), reduction="sum") / known
                loss.backward()
                total += loss.detach()
        if step == 0:
            report = differences(trained.module, total, folder)
        torch.nn.utils.clip_grad_norm_(trained.module.parameters(), 1.0)
        optimiser.step()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"peer": way, "seconds": statistics.median(seconds[WARM:]), **report}), flush=True)
    dist.barrier()
    # Without taking the group down: now and then its destructor joins a thread that waits for the interpreter's lock.
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], *(int(size) for size in sys.argv[2:5]), pathlib.Path(sys.argv[5]), (sys.argv[6:] or ["f32"])[0])
