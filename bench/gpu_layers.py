#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels and layers of transformers on one GPU, as PyTorch runs them, beside what Penstock's roofline predicts for them.

    bench/gpu_layers.py --out measured.json [--long] [--seconds 80]           # where there are CUDA and PyTorch
    bench/gpu_layers.py --compare measured.json [--device h100-sxm] [--all]   # where Penstock and its Python module are built

Measured are medians of CUDA events after a warm-up: kernels and layers as replays of CUDA graphs, so that hosts do not count, and layers
up to EAGER seconds also as PyTorch launches them. Layers are GPT-2's and Llama 3's, causal, with fused attention, in f32 without TF32 or in
bf16 as Penstock trains it: norms in f32, weights in bf16, gradients of weights brought to f32. A backward gives the gradients of input and
parameters. Predictions are those of `penstock simulate` for kernels, each a task of one program, and of `penstock plan` for layers: what two
layers take more than one.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

from common import ROOT, penstock

WIDTHS, LENGTHS, SAMPLES = (768, 2048, 4096, 8192), (1024, 2048, 8192), (1, 2, 4)
MOST_FLOPS = {"bf16": 1e15, "f32": 2e12}  # of a layer's forward: the others take too long here
EAGER, LONG = 0.004, 0.01  # seconds: below the first what hosts take shows in a layer; above the second it does not in anything
VOCABULARY = 50304
BYTES = {"bf16": 2, "f32": 4, "i64": 8}

# Rows, columns and results of products; samples, heads, length and width of a head.
PRODUCTS = ((1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768), (4096, 768, 2304), (4096, 768, VOCABULARY), (1024, 2048, 2048),
            (2048, 2048, 6144), (8192, 2048, 8192), (1024, 4096, 4096), (4096, 4096, 14336), (8192, 4096, 12288), (1024, 8192, 8192),
            (2048, 8192, 28672), (8192, 8192, 8192))  # fmt: skip
ATTENTION = ((1, 12, 1024, 64), (4, 12, 1024, 64), (1, 12, 8192, 64), (1, 16, 2048, 128), (1, 32, 2048, 128), (4, 32, 2048, 128),
             (1, 32, 8192, 128))  # fmt: skip
# Long sequences, heads of 128: how many heads, and the lengths whole, and of slices, whose keys are an earlier slice's.
LONG_HEADS, LONG_LENGTHS, SLICE_LENGTHS = 32, (32768, 65536, 131072), (256, 512, 1024, 2048, 4096, 8192, 16384)

# kind: its class. operands, results: (dtype, shape). op: Penstock's, of %0, %1, ...; make: from tensors on the device, gives what is timed.
Kernel = namedtuple("Kernel", "kind label dtype operands results op make")


def heads_of(width):
    return width // (64 if width < 2048 else 128)


def key_heads_of(width):
    """The key heads of a Llama: 8 as Llama 3 has them, all where there are few."""
    return heads_of(width) if width < 4096 else 8


# --- kernels


def products(t, n, k, m):
    x, w, y = (t, (n, k)), (t, (m, k)), (t, (n, m))
    label = f"{n} x {k} x {m}"
    yield Kernel("product", label, t, [x, w], [y], "linear(%0, %1)", lambda f, x, w: lambda: f.nn.functional.linear(x, w))
    yield Kernel("product for x", label, t, [y, w], [x], "mm(%0, %1)", lambda f, y, w: lambda: f.mm(y, w))
    yield Kernel("product for w", label, t, [(t, (m, n)), x], [w], "mm(%0, %1)", lambda f, y, x: lambda: f.mm(y.view(n, m).t(), x))


def attention(t, b, h, l, d, causal=True):
    x, sums = (t, (b, h, l, d)), ("f32", (b, h, l))
    how = f"{{is_causal={'true' if causal else 'false'}, scale={d**-0.5!r}}}"

    def forward(f, q, k, v):
        return lambda: f.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def backward(f, dy, q, k, v, *_):
        inputs = [each.requires_grad_() for each in (q, k, v)]
        y = forward(f, *inputs)()
        return lambda: f.autograd.grad(y, inputs, dy, retain_graph=True)

    label = f"{b} x {h} x {l} x {d}" + ("" if causal else ", no mask")
    yield Kernel("attention", label, t, [x] * 3, [x, sums], f"scaled_dot_product_attention(%0, %1, %2) {how}", forward)
    yield Kernel("attention, backward", label, t, [x] * 5 + [sums], [x] * 3,
                 f"scaled_dot_product_attention_backward(%0, %1, %2, %3, %4, %5) {how}", backward)  # fmt: skip


def norms(t, n, w):
    x, row, statistic = (t, (n, w)), (t, (w,)), ("f32", (n, 1))
    label = f"{n} x {w}"
    yield Kernel("norm", f"layer {label}", t, [x, row, row], [x, statistic, statistic], "native_layer_norm(%0, %1, %2) {eps=1e-05}",
                 lambda f, x, s, b: lambda: f.native_layer_norm(x, (w,), s, b, 1e-5))  # fmt: skip
    yield Kernel("norm, backward", f"layer {label}", t, [x, x, statistic, statistic, row, row], [x, row, row],
                 "native_layer_norm_backward(%0, %1, %2, %3, %4, %5)", lambda f, dy, x, mean, r, s, b: lambda:
                 f.ops.aten.native_layer_norm_backward(dy, x, (w,), mean, r, s, b, [True] * 3))  # fmt: skip
    yield Kernel("norm", f"rms {label}", t, [x, row], [x, statistic], "_fused_rms_norm(%0, %1) {eps=1e-05}",
                 lambda f, x, s: lambda: f.ops.aten._fused_rms_norm(x, (w,), s, 1e-5))  # fmt: skip
    yield Kernel("norm, backward", f"rms {label}", t, [x, x, statistic, row], [x, row], "_fused_rms_norm_backward(%0, %1, %2, %3)",
                 lambda f, dy, x, r, s: lambda: f.ops.aten._fused_rms_norm_backward(dy, x, (w,), r, s, [True] * 2))  # fmt: skip


def elementwise(t, n, w):
    x, label = (t, (n, w)), f"{n} x {w}"
    yield Kernel("element by element", f"add {label}", t, [x, x], [x], "add(%0, %1)", lambda f, a, b: lambda: a + b)
    yield Kernel("element by element", f"gelu {label}", t, [x], [x], 'gelu(%0) {approximate="tanh"}',
                 lambda f, a: lambda: f.nn.functional.gelu(a, approximate="tanh"))  # fmt: skip
    yield Kernel("element by element", f"gelu, backward {label}", t, [x, x], [x], 'gelu_backward(%0, %1) {approximate="tanh"}',
                 lambda f, dy, a: lambda: f.ops.aten.gelu_backward(dy, a, approximate="tanh"))  # fmt: skip
    yield Kernel("element by element", f"silu {label}", t, [x], [x], "silu(%0)", lambda f, a: lambda: f.nn.functional.silu(a))
    if t == "bf16":
        yield Kernel("element by element", f"to f32 {label}", t, [x], [("f32", (n, w))], "to(%0) {dtype=f32}",
                     lambda f, a: lambda: a.float())  # fmt: skip


def tables(t, n, w):
    rows, table, y = ("i64", (n,)), (t, (VOCABULARY, w)), (t, (n, w))
    label = f"{n} of {VOCABULARY} x {w}"
    yield Kernel("embedding", label, t, [table, rows], [y], "embedding(%0, %1)",
                 lambda f, table, i: lambda: f.nn.functional.embedding(i, table))  # fmt: skip
    yield Kernel("embedding, backward", label, t, [y, rows], [table], f"embedding_dense_backward(%0, %1) {{num_weights={VOCABULARY}}}",
                 lambda f, dy, i: lambda: f.ops.aten.embedding_dense_backward(dy, i, VOCABULARY, -1, False))  # fmt: skip


def losses(n):
    logits, targets, one, sums = ("f32", (n, VOCABULARY)), ("i64", (n,)), ("f32", ()), ("f32", (n,))

    def backward(f, dy, x, targets, _):
        loss = f.nn.functional.cross_entropy(x.requires_grad_(), targets)
        return lambda: f.autograd.grad(loss, x, dy, retain_graph=True)

    label = f"{n} x {VOCABULARY}"
    yield Kernel("cross-entropy", label, "f32", [logits, targets], [one, sums], "cross_entropy(%0, %1) {ignore_index=-100}",
                 lambda f, x, targets: lambda: f.nn.functional.cross_entropy(x, targets))  # fmt: skip
    yield Kernel("cross-entropy, backward", label, "f32", [one, logits, targets, sums], [logits],
                 "cross_entropy_backward(%0, %1, %2, %3) {ignore_index=-100}", backward)  # fmt: skip


def update(n):
    x, one, step = ("f32", (n,)), ("f32", ()), ("i64", ())

    def make(f, x, dx, *_):
        x.grad = dx
        return f.optim.AdamW([x], lr=1e-4, fused=True, capturable=True).step

    yield Kernel("AdamW", f"{n}", "f32", [x] * 4 + [one, step], [x] * 3,
                 "adamw(%0, %1, %2, %3, %4, %5) {beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01}", make)  # fmt: skip


def long_attention():
    """The kernels of attention in a long sequence, whole and in slices: to earlier slices' keys no mask is needed."""
    for causal, lengths in ((False, SLICE_LENGTHS), (True, SLICE_LENGTHS + LONG_LENGTHS)):
        for length in lengths:
            yield from attention("bf16", 1, LONG_HEADS, length, 128, causal)


def kernels():
    for t in ("bf16", "f32"):
        for shape in PRODUCTS:
            yield from products(t, *shape)
        for shape in ATTENTION:
            yield from attention(t, *shape)
        for n, w in ((1024, 768), (4096, 2048), (8192, 4096), (8192, 8192)):
            yield from norms(t, n, w)
        for n, w in ((1024, 768), (1024, 3072), (4096, 8192), (8192, 32768)):
            yield from elementwise(t, n, w)
        yield from tables(t, 8192, 2048)
    for n in (2048, 8192):
        yield from losses(n)
    for n in (2 * 2**20, 16 * 2**20, 256 * 2**20):
        yield from update(n)


# --- layers, for PyTorch


def layers_of(torch):
    """GPT-2's and Llama 3's layer by name. Both take width and length; x is [samples, length, width]."""
    nn, functional = torch.nn, torch.nn.functional

    def by_heads(x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def normed(norm, x):
        return norm(x.float()).to(x.dtype)

    class Gpt(nn.Module):
        def __init__(self, width, length):
            super().__init__()
            self.heads = heads_of(width)
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (by_heads(part, self.heads) for part in self.qkv(normed(self.ln_1, x)).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(normed(self.ln_2, x)), approximate="tanh"))

    class Llama(nn.Module):
        def __init__(self, width, length):
            super().__init__()
            self.heads, self.key_heads = heads_of(width), key_heads_of(width)
            head, inner = width // self.heads, 7 * width // 2
            angles = torch.arange(length)[:, None] * 500000.0 ** (torch.arange(0, head, 2) / -head).repeat(2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

            def linear(a, b):
                return nn.Linear(a, b, bias=False)

            self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            self.q, self.k, self.v = (linear(width, heads * head) for heads in (self.heads, self.key_heads, self.key_heads))
            self.o, self.gate, self.up, self.down = linear(width, width), linear(width, inner), linear(width, inner), linear(inner, width)

        def rotated(self, x):
            low, high = x.chunk(2, -1)
            return x * self.cos.to(x.dtype) + torch.cat((-high, low), -1) * self.sin.to(x.dtype)

        def forward(self, x):
            y = normed(self.norm_1, x)
            q, k, v = by_heads(self.q(y), self.heads), by_heads(self.k(y), self.key_heads), by_heads(self.v(y), self.key_heads)
            mixed = functional.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True,
                                                            enable_gqa=self.heads > self.key_heads)  # fmt: skip
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            y = normed(self.norm_2, x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    return {"gpt": Gpt, "llama": Llama}


def forward_flops(style, width, length, samples):
    """Roughly, for what is left out."""
    return 2 * samples * length * width * (12 * width + length)


# --- measuring


def timed(torch, step, budget=0.04):
    """Seconds of a step by events: the median of as many as fit into the budget."""
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = min(50, max(5, int(budget / (time.perf_counter() - begin))))
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for first, last in marks:
        first.record()
        step()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in marks) / 1e3


def replayed(torch, step):
    """Seconds of a step without its host's part: in a CUDA graph, ten times if it is short."""
    launched = timed(torch, step, budget=0)
    if launched > LONG:
        return launched
    times = 10 if launched < LONG / 5 else 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(times):
            step()
    return timed(torch, graph.replay) / times


def tensor(torch, dtype, shape):
    if dtype == "i64":
        return torch.randint(VOCABULARY, shape, device="cuda")
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)


def kernel_seconds(torch, kernel):
    return replayed(torch, kernel.make(torch, *(tensor(torch, *operand) for operand in kernel.operands)))


def layer_seconds(torch, style, dtype, width, length, samples):
    """Seconds of forward and backward, replayed, then as PyTorch launches them; None where the two are the same."""
    x, dy = (tensor(torch, dtype, (samples, length, width)) for _ in range(2))
    with torch.device("cuda"):
        layer = layers_of(torch)[style](width, length).to(x.dtype)
    for module in layer.children():
        if "Norm" in type(module).__name__:
            module.float()
    y = layer(x.requires_grad_())
    parameters = list(layer.parameters())

    def backward():
        dx, *gradients = torch.autograd.grad(y, [x, *parameters], dy, retain_graph=True)
        return dx, [gradient.float() for gradient in gradients]

    steps = [lambda: layer(x), backward]
    out = [replayed(torch, step) for step in steps]
    return out + [timed(torch, step) if sum(out) < EAGER else None for step in steps]


def layer_cases():
    cases = [(style, dtype, width, length, samples) for width in WIDTHS for length in LENGTHS for samples in SAMPLES
             for style in ("gpt", "llama") for dtype in ("bf16", "f32")]  # fmt: skip
    return [case for case in cases if forward_flops(case[0], *case[2:]) <= MOST_FLOPS[case[1]]]


def rounded(seconds):
    """Microseconds, four digits."""
    return None if seconds is None else float(f"{1e6 * seconds:.4g}")


def gpu_state():
    names = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"
    found = subprocess.run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"], capture_output=True, text=True).stdout
    return dict(zip(names.split(","), found.strip().split(", ")))


def measured(seconds, kernels, layers):
    import torch

    begin = time.monotonic()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    out = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "before": gpu_state(),
           "unit": "microseconds", "kernels": [], "layers": [], "left_out": []}  # fmt: skip

    def add(group, name, measure):
        if time.monotonic() - begin > seconds:
            return out["left_out"].append([group, *name])
        try:
            out[group].append([*name, *map(rounded, measure())])
        except RuntimeError as error:  # too little memory, above all
            out["left_out"].append([group, *name, str(error)[:100]])
        torch.cuda.empty_cache()

    with torch.cuda.stream(torch.cuda.Stream()):  # a backward runs on its forward's stream, and what is captured on another than the first
        for kernel in kernels:
            add("kernels", (kernel.kind, kernel.label, kernel.dtype), lambda: [kernel_seconds(torch, kernel)])
        print(f"kernels: {time.monotonic() - begin:.1f} s", flush=True)
        for case in layers:
            add("layers", case, lambda: layer_seconds(torch, *case))
    out["after"] = gpu_state()
    print(f"all: {time.monotonic() - begin:.1f} s, left out {len(out['left_out'])}")
    return out


def text_of(out):
    """JSON with a line for each measurement."""
    def text(value):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "]" if isinstance(value, list) and value else json.dumps(value)

    return "{" + ",\n".join(f'"{key}": {text(value)}' for key, value in out.items()) + "}\n"


# --- predictions


def program_of(kernels):
    """A program that runs each kernel as a task, whose operands are state."""
    tasks, slots, runs = [], [], []
    begin = {"state": 0, "step": 0}

    def slot(name, kind, dtype, shape):
        typed = f"{dtype}[{','.join(map(str, shape))}]"
        slots.append(f"  slot {name} {kind} @{begin[kind]} ({typed}" + (f' "{name[1:]}")' if kind == "state" else ")"))
        begin[kind] += -(-BYTES[dtype] * math.prod(shape) // 128) * 128
        return typed

    for number, kernel in enumerate(kernels):
        xs = [f"%x{number}_{i}" for i in range(len(kernel.operands))]
        ys = [f"%y{number}_{i}" for i in range(len(kernel.results))]
        types = [slot(name, "state", *of) for name, of in zip(xs, kernel.operands)]
        results = [slot(name, "step", *of) for name, of in zip(ys, kernel.results)]
        inputs, outputs = (", ".join(map("{}: {}".format, *pair)) for pair in ((xs, types), (ys, results)))
        tasks += [f"task @K{number} {{scratch=0}}", f"graph @K{number}({inputs}) -> ({', '.join(results)}) {{",
                  f"  {outputs} = " + re.sub("%([0-9])", rf"%x{number}_\1", kernel.op), f"  return {', '.join(ys)}", "}"]  # fmt: skip
        runs += [f"  run @K{number}({', '.join(xs)}) -> ({', '.join('store ' + y for y in ys)})", *("  free " + y for y in ys)]
    return "\n".join(["penstock program 1", "program @kernels {microbatches=1}", *tasks,
                      f"device 0 {{state_bytes={begin['state']}, step_bytes={begin['step']}, scratch_bytes=0}}",
                      *slots, *runs, ""])  # fmt: skip


def predicted_kernels(kernels, device):
    """Seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        program, timeline = (pathlib.Path(folder) / name for name in ("kernels.txt", "timeline.json"))
        program.write_text(program_of(kernels))
        penstock("simulate", program, "--device", device, "--timeline", timeline)
        activities = json.loads(timeline.read_text())["penstock"]["activities"]
    return [end - begin for begin, end in zip(activities["begin"], activities["end"])]


def gpt_figures(device, layers, dtype, width, length, samples):
    sizes = {"layers": layers, "width": width, "heads": heads_of(width), "context": length}
    sets = [word for key, value in sizes.items() for word in ("--set", f"model.{key}={value}")]
    return json.loads(penstock("plan", "gpt", *sets, "--set", f"train.dtype={dtype}", "--batch", samples, "--microbatch-sizes", samples,
                               "--devices", 1, "--device", device, "--planner", "pipedream", "--json"))["figures"][0]  # fmt: skip


def llama_figures(device, layers, dtype, width, length, samples):
    sys.path.insert(0, str(ROOT / "build/python"))
    import torch

    import penstock as module

    class Stack(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x).float().mean()

    kind = torch.bfloat16 if dtype == "bf16" else None
    with torch.device("meta"):
        stack = Stack(*(layers_of(torch)["llama"](width, length) for _ in range(layers)))
        x = torch.empty(samples, length, width, dtype=kind)
    found = module.plan(stack, x, devices=1, device=device, planner="pipedream", microbatches=1, dynamic=False, autocast=kind)
    return json.loads(found.file.json())["stages"][0]


def predicted_layer(device, style, *sizes):
    """Seconds of forward and backward."""
    figures = {"gpt": gpt_figures, "llama": llama_figures}[style]
    one, two = (figures(device, layers, *sizes) for layers in (1, 2))
    return [two[key] - one[key] for key in ("forward", "backward")]


# --- both


def compared(found, device):
    """Rows of class, label, measured and predicted seconds."""
    by_name = {(kernel.kind, kernel.label, kernel.dtype): kernel for kernel in [*kernels(), *long_attention()]}
    measured_kernels = [by_name[tuple(name)] for *name, _ in found["kernels"]]
    for (kind, label, dtype, micro), seconds in zip(found["kernels"], predicted_kernels(measured_kernels, device)):
        yield f"{kind}, {dtype}", label, micro / 1e6, seconds
    for style, dtype, width, length, samples, *micros in found["layers"]:
        predicted = predicted_layer(device, style, dtype, width, length, samples)
        for way, micro, seconds in zip(("forward", "backward", "forward, launched", "backward, launched"), micros, predicted * 2):
            if micro:
                yield f"{style}, {dtype}, {way}", f"{width}, {samples} x {length}", micro / 1e6, seconds


def print_comparison(rows, every):
    by_class = {}
    for kind, label, seconds, predicted in rows:
        by_class.setdefault(kind, []).append(predicted / seconds)
        if every:
            print(f"| {kind} | {label} | {1e6 * seconds:.1f} | {1e6 * predicted:.1f} | {predicted / seconds:.2f} |", flush=True)
    print("\n| class | of | predicted / measured, median | tenth to nine tenths | within 15 % |\n|---|---|---|---|---|")
    for kind, ratios in by_class.items():
        ratios.sort()
        low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.9))
        near = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
        print(f"| {kind} | {len(ratios)} | {statistics.median(ratios):.2f} | {low:.2f} to {high:.2f} | {near} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="measures, and writes this file")
    parser.add_argument("--seconds", type=float, default=80, help="after which nothing more is measured")
    parser.add_argument("--long", action="store_true", help="measures attention of long sequences alone, whole and in slices")
    parser.add_argument("--compare", metavar="FILE", help="what was measured, beside predictions")
    parser.add_argument("--device", default="h100-sxm", help="of the published ones")
    parser.add_argument("--all", action="store_true", help="prints each figure, not the classes alone")
    options = parser.parse_args()
    if options.out:
        cases = (long_attention(), []) if options.long else (kernels(), layer_cases())
        pathlib.Path(options.out).write_text(text_of(measured(options.seconds, *cases)))
    if options.compare:
        print_comparison(compared(json.loads(pathlib.Path(options.compare).read_text()), options.device), options.all)


if __name__ == "__main__":
    main()
