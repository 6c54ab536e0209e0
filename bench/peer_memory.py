#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor bytes of the peer's reference work at their peak, per rank: every allocation of libtorch's CPU allocator, added up in time.

    .venv/bin/python bench/peer_memory.py bench/torch_peer.py sequential 256 16 2
    .venv/bin/python -m torch.distributed.run --nproc-per-node=2 bench/peer_memory.py bench/torch_peer.py 1F1B 256 16 2

To be compared with peak_bytes of `penstock train` on the same work (bench/peer.py prints it).
"""
import importlib.util
import json
import os
import sys

import torch
from torch.profiler import ProfilerActivity, profile


def peak_of(work):
    """The most tensor bytes at once while work() runs, of those that it allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    changes = [(e.start_ns(), e.nbytes()) for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda c: c[0]):
        now += change
        peak = max(peak, now)
    return peak


def main():
    script, how = sys.argv[1:3]
    sizes = [int(a) for a in sys.argv[3:6]]
    spec = importlib.util.spec_from_file_location("peer", script)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    peer.STEPS, peer.WARM = 2, 0  # from the second step on nothing new is kept
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peak = peak_of(lambda: peer.sequential(*sizes) if how == "sequential" else peer.pipelined(how, *sizes))
    print(json.dumps({"peer": how, "rank": int(os.environ.get("RANK", 0)), "tensor_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
