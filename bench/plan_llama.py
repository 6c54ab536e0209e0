#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time and memory of planning a model that no device here holds: Llama-3 70B from its configuration, on meta tensors, for 64 H100.

    PYTHONPATH=build/python bench/plan_llama.py [--layers 80] [--length 4096] [--samples 512] [--planner best] [--bf16] [--out plan.html]

Printed are seconds of the clock and of CPU of each part (making the module, exporting it as a step, costs and the planner's search) and the
process's memory at its largest, then the plan. The page is written where --out says.
"""
import argparse
import pathlib
import resource
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
CLUSTER = REPOSITORY / "examples/clusters/h100-64.toml"


class Parts:
    """Prints what each part took."""

    def __init__(self):
        self.clock, self.cpu = time.monotonic(), time.process_time()

    def end(self, name):
        clock, cpu = time.monotonic(), time.process_time()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name:28} {clock - self.clock:7.1f} s, {cpu - self.cpu:7.1f} s of CPU, {memory:5.2f} GiB", flush=True)
        self.clock, self.cpu = clock, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--planner", default="best")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--bf16", action="store_true", help="computed under autocast; parameters, gradients and moments are f32")
    parser.add_argument("--out")
    given = parser.parse_args()
    parts = Parts()
    sys.path.append(str(REPOSITORY / "tests/python"))
    import torch
    from zoo import stub_torchvision

    stub_torchvision()
    import transformers

    import penstock
    from penstock import _core, planned

    config = transformers.LlamaConfig(hidden_size=8192, num_hidden_layers=given.layers, num_attention_heads=64, num_key_value_heads=8,
                                      intermediate_size=28672, vocab_size=128256, max_position_embeddings=8192, use_cache=False)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    parts.end("PyTorch and the module")
    ids = torch.zeros(given.samples, given.length, dtype=torch.long)
    steps = planned.steps_of(model, {"input_ids": ids, "labels": ids}, [given.samples], None, None, False, (), 0.0,
                              torch.bfloat16 if given.bf16 else None)
    parts.end("export, and the step")
    cluster = _core.Cluster(CLUSTER.read_text(), str(CLUSTER))
    plan = penstock.Planned(_core.plan_steps("Llama", steps, cluster, given.planner, cluster.published, None, given.seconds, True, 64,
                                             planned._only("")))
    parts.end("costs, and the planner")
    if given.out:
        plan.show(given.out)
        parts.end("page")
    print(plan)


if __name__ == "__main__":
    main()
