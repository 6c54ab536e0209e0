#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what exporting a PyTorch model from its configuration takes, without its weights.

    bench/export.py [--threads 1] [--length 512] [MODEL ...]

Models are Hugging Face's, on the meta device: GPT-2 of 124M parameters, Llamas of the shapes of 1B and 70B; and torchvision's, for images of
224 x 224. Each is exported in a process of its own, with fixed sizes, with symbols for the samples and for all sizes; printed are CPU seconds,
the process's memory at its largest (with what PyTorch and Transformers take by themselves beside it), ops and bytes of the graph.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 8192}
MODELS = {
    "GPT-2 124M": ("GPT2", {}),
    "Llama 1B": ("Llama", {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}),
    "Llama 70B": ("Llama", {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}),
}
VISION = {"ResNet50": "resnet50", "DenseNet121": "densenet121", "Swin-T": "swin_t"}
CLASSES = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}


def call_of(name, length):
    """The model, the arguments that it is called with, and the loss function and target of one that has none of its own."""
    import torch
    import transformers

    with torch.device("meta"):
        if name in VISION:
            import torchvision
            return getattr(torchvision.models, VISION[name])(), (torch.zeros(4, 3, 224, 224),), {}, torch.nn.functional.cross_entropy, torch.zeros(4).long()
        kind, sizes = MODELS[name]
        model = getattr(transformers, CLASSES[kind])(getattr(transformers, kind + "Config")(**sizes)).train()
    tokens = torch.zeros(2, length, dtype=torch.long)
    return model, (), {"input_ids": tokens, "labels": tokens}, None, None


def measure(name, sizes, length, threads):
    """In this process, which has done nothing else."""
    sys.path[:0] = [str(REPOSITORY / "python"), str(REPOSITORY / "tests" / "python")]
    import torch
    from zoo import stub_torchvision

    import penstock
    import penstock.trace  # noqa: F401  (loaded with the package's first export)

    stub_torchvision()
    torch.set_num_threads(threads)
    model, args, kwargs, loss, target = call_of(name, length)
    dynamic = {"fixed": False, "samples": {"input_ids" if kwargs else "x": (0,)}, "symbols": True}[sizes]
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    exported = penstock.export(model, args, kwargs, loss=loss, target=target, dynamic=dynamic)
    return {"seconds": time.process_time() - begin, "before": before, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "ops": exported.text.count(" = "), "bytes": len(exported.text), "parameters": sum(p.numel() for p in model.parameters())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS, *VISION], metavar="MODEL", help=", ".join([*MODELS, *VISION]))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.length, options.threads)))
        return
    print("| model | parameters | sizes | CPU | peak (before) | ops | text |\n|---|---|---|---|---|---|---|")
    for name in options.models:
        for sizes in ("fixed", "samples", "symbols"):
            command = [sys.executable, __file__, "--one", name, sizes, "--length", str(options.length), "--threads", str(options.threads)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            print(f"| {name} | {found['parameters'] / 1e6:,.0f} M | {sizes} | {found['seconds']:.1f} s | {found['peak'] / 2**20:.2f} GiB "
                  f"({found['before'] / 2**20:.2f}) | {found['ops']:,} | {found['bytes'] / 1e6:.2f} MB |", flush=True)


if __name__ == "__main__":
    main()
