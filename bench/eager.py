#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time of a training step of models of Hugging Face, as PyTorch runs it and as Penstock does: one device, one thread, one micro-batch.

    bench/eager.py [--width 256] [--layers 4] [--batch 4] [--context 128] [--steps 10] [--rounds 5]

Both do forward, backward and AdamW in f32, on copies of one module with dropout off. Printed per model: milliseconds of CPU a step, medians over rounds
that alternate, and their ratio; and what PyTorch's matrix products take of its step, below which no step falls that computes them as fast.
"""
import argparse
import copy
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "build/python"), str(ROOT / "tests/python")]

from zoo import stub_torchvision  # noqa: E402

import penstock  # noqa: E402

stub_torchvision()
import transformers  # noqa: E402

VOCABULARY = 1024


def models(options):
    heads = options.width // 64
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=options.width, n_layer=options.layers, n_head=heads, n_positions=options.context,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))  # fmt: skip
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.width, intermediate_size=4 * options.width, num_hidden_layers=options.layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=options.context))  # fmt: skip


def cpu(step, steps):
    begin = time.process_time()
    for _ in range(steps):
        step()
    return 1e3 * (time.process_time() - begin) / steps


def products(step, steps):
    """Milliseconds of CPU a step in PyTorch's matrix products."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            step()
    return sum(op.self_cpu_time_total for op in profile.key_averages() if op.key in ("aten::mm", "aten::addmm", "aten::bmm")) / 1e3 / steps


def measure(model, options):
    model.train()
    tokens = torch.randint(VOCABULARY, (options.batch, options.context))
    batch = {"input_ids": tokens, "labels": tokens}
    twin = copy.deepcopy(model)
    ours = penstock.trainer(twin, batch, actors=1, microbatches=1, optimizer=torch.optim.AdamW(twin.parameters(), lr=1e-4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def theirs():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    taken = {"eager": [], "penstock": [], "products": []}
    for _ in range(options.rounds):
        taken["penstock"].append(cpu(lambda: ours(batch), options.steps))
        taken["eager"].append(cpu(theirs, options.steps))
        taken["products"].append(products(theirs, options.steps))
    return {name: statistics.median(times) for name, times in taken.items()}


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("width", 256), ("layers", 4), ("batch", 4), ("context", 128), ("steps", 10), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, model in models(options):
        found = measure(model, options)
        print(f"{name:8} eager {found['eager']:7.1f} ms, penstock {found['penstock']:7.1f} ms, ratio {found['penstock'] / found['eager']:.2f}; "
              f"eager's products alone {found['products']:.1f} ms, {found['products'] / found['eager']:.2f}")


if __name__ == "__main__":
    main()
