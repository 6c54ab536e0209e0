#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of Hugging Face, unmodified, trained by penstock.trainer and by torch.distributed.pipelining in turn.

    PYTHONPATH=build/python .venv/bin/python bench/gpt2_peer.py [--layers 12] [--width 768] [--heads 12] [--context 128] [--batch 8] [--microbatches 8]
                                                                [--schedule 1f1b] [--steps 3] [--rounds 3] [--ranks] [--dtype bf16]

With --dtype bf16 ours has autocast=torch.bfloat16, and theirs runs under torch.autocast, whose parameters are f32 as ours.
Two actors: here threads of one process or, with --ranks, two processes over Gloo as there, each with one thread of computation; f32, AdamW, no
dropout. Printed: how long exporting, planning and compiling took, seconds of a step (the median of a round's steps, then of the rounds), their ratio,
the largest relative difference of the losses, and the peak of each process's resident memory.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch

SPLIT = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}


def model_of(options):
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/python"))
    import zoo

    zoo.stub_torchvision()
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=options.layers, n_embd=options.width, n_head=options.heads, n_positions=max(1024, options.context),
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def batches(options):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50257, (options.batch, options.context), generator=generator) for _ in range(options.steps + 1)]


def seconds_of(step, options):
    """Losses, and the seconds of each step but the first."""
    losses, seconds = [], []
    for ids in batches(options):
        begin = time.perf_counter()
        losses.append(float(step(ids)))
        seconds.append(time.perf_counter() - begin)
    return losses, seconds[1:]


def report(losses, seconds, made):
    found = {"losses": losses, "seconds": statistics.median(seconds), "made": made, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    os.write(1, (json.dumps(found) + "\n").encode())  # in one piece: processes share the pipe


def ours(options):
    import penstock

    with torch.device("meta" if int(os.environ.get("RANK", "0")) else "cpu"):  # rank 0's values are the ones that are read
        model = model_of(options)
    example = {"input_ids": (ids := batches(options)[0]), "labels": ids}
    begin = time.perf_counter()
    step = penstock.trainer(model, example, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4), actors=2, schedule=options.schedule,
                            microbatches=options.microbatches, dynamic=False, deadline=600,
                            autocast=torch.bfloat16 if options.dtype == "bf16" else None)
    made = time.perf_counter() - begin
    report(*seconds_of(lambda ids: step({"input_ids": ids, "labels": ids}), options), made)


def theirs(options):
    import torch.distributed as dist
    import torch.distributed.pipelining as pipelining

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = model_of(options)
    size = options.batch // options.microbatches
    begin = time.perf_counter()
    pipe = pipelining.pipeline(model, mb_args=(), mb_kwargs={"input_ids": batches(options)[0][:size]},
                               split_spec={f"transformer.h.{options.layers // 2}": pipelining.SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))

    def loss_of(output, labels):
        logits = output["logits"] if isinstance(output, dict) else output.logits if hasattr(output, "logits") else output
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    schedule = getattr(pipelining, SPLIT[options.schedule])(stage, options.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-4)
    made = time.perf_counter() - begin

    def step(ids):
        optimizer.zero_grad()
        losses = []
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            schedule.step(input_ids=ids) if rank == 0 else schedule.step(target=ids, losses=losses)
        optimizer.step()
        dist.barrier()
        return torch.stack(losses).mean() if losses else 0.0
    losses, seconds = seconds_of(step, options)
    for each in range(2):
        if rank == each:
            report(losses, seconds, made)
        dist.barrier()
    dist.destroy_process_group()


def run(side, arguments, ranks):
    """The reports of a side's processes."""
    processes = ["-m", "torch.distributed.run", "--master-addr=127.0.0.1", "--nproc-per-node=2"] if ranks else []
    done = subprocess.run([sys.executable, *processes, __file__, *arguments, "--side", side], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(found) != (2 if ranks else 1):
        sys.exit(done.stderr[-3000:])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 12, "width": 768, "heads": 12, "context": 128, "batch": 8, "microbatches": 8, "steps": 3, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--schedule", default="1f1b", choices=sorted(SPLIT))
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--side", choices=["ours", "theirs"])
    options = parser.parse_args()
    if options.side:
        torch.set_num_threads(1)
        return {"ours": ours, "theirs": theirs}[options.side](options)
    arguments = [argument for argument in sys.argv[1:]]
    rounds = [(run("ours", arguments, options.ranks), run("theirs", arguments, True)) for _ in range(options.rounds)]
    seconds = [[max(process["seconds"] for process in side) for side in both] for both in rounds]
    mine, others = (statistics.median(side) for side in zip(*seconds))
    made = [max(process["made"] for process in side) for side in rounds[0]]
    losses = [next(process["losses"] for process in side if process["losses"][0]) for side in rounds[0]]
    peaks = [" and ".join(f"{process['peak'] / 2**30:.2f}" for process in side) for side in rounds[0]]
    print(f"exported, cut and compiled in {made[0]:.1f} s; theirs traced in {made[1]:.1f} s")
    print(f"a step {mine:.3f} s, theirs {others:.3f} s, ratio {mine / others:.3f} ({' '.join(f'{a / b:.3f}' for a, b in seconds)})")
    print(f"losses differ by {max(abs(a - b) / abs(b) for a, b in zip(*losses)):.1e} at most")
    print(f"peak memory of the processes {peaks[0]} GiB, theirs {peaks[1]} GiB")


if __name__ == "__main__":
    main()
