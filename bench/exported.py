#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step time of Hugging Face's GPT-2, exported and run by the program, beside Penstock's own model of the same shape: AdamW with clipping, f32.

    bench/exported.py [--width 768] [--layers 12] [--batch 4] [--context 128] [--actors 1] [--microbatches 1] [--steps 8] [--rounds 3]

Runs alternate. Printed: milliseconds a step, medians over rounds of medians over steps and their ratio.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

from common import ROOT, WARM_UP, median_of, train

sys.path[:0] = [str(ROOT / "build/python"), str(ROOT / "tests/python")]

import torch  # noqa: E402
from zoo import stub_torchvision  # noqa: E402

import penstock  # noqa: E402

stub_torchvision()
import transformers  # noqa: E402

VOCABULARY = 256


def write_gpt2(path, options):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=options.width, n_layer=options.layers, n_head=options.width // 64, n_positions=options.context,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))  # fmt: skip
    tokens = torch.randint(VOCABULARY, (2, options.context))
    penstock.export(model, (), {"input_ids": tokens, "labels": tokens}, dynamic=True).save(path)


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("width", 768), ("layers", 12), ("batch", 4), ("context", 128), ("actors", 1), ("microbatches", 1), ("steps", 8),
                          ("rounds", 3)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        folder = pathlib.Path(folder)
        exported, own, text = folder / "gpt2.safetensors", folder / "gpt.toml", folder / "text.txt"
        write_gpt2(exported, options)
        own.write_text(f'model.name = "gpt"\nmodel.layers = {options.layers}\nmodel.width = {options.width}\n'
                       f"model.heads = {options.width // 64}\nmodel.context = {options.context}\n")
        text.write_text("".join(chr(32 + (i * i // 3 + 7 * i) % 90) for i in range(1 << 16)))
        same = ["--text", text, "--batch", options.batch, "--microbatches", options.microbatches, "--actors", options.actors,
                "--steps", options.steps + WARM_UP, "--set", "validation_every=0", "--set", f"context={options.context}"]  # fmt: skip
        runs = {"exported": [exported, *same], "own": [own, *same[:-2]]}
        taken = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, arguments in runs.items():
                taken[name].append(median_of(train(folder, *arguments), "seconds"))
        seconds = {name: statistics.median(times) for name, times in taken.items()}
        ratios = [ours / own for ours, own in zip(taken["exported"], taken["own"], strict=True)]
        print(f"exported {1e3 * seconds['exported']:.1f} ms, own {1e3 * seconds['own']:.1f} ms, "
              f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
