# SPDX-License-Identifier: Apache-2.0
"""The steps of bench/gpu.sh, each in its own time, and each one's figures in the file of results as soon as it has ended (bench/gpu/README.md)."""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = {"layers": 4, "width": 32, "heads": 2, "context": 16, "vocabulary": 256}
GPT2 = {"layers": 12, "width": 768, "heads": 12, "context": 1024, "vocabulary": 50304}
MEDIUM = {"layers": 24, "width": 1024, "heads": 16, "context": 1024, "vocabulary": 50304}
BILLION = {"layers": 24, "width": 2048, "heads": 16, "context": 1024, "vocabulary": 50304}
# Two actors on one GPU run each of these, and what a schedule needs beside its name.
SCHEDULES = {"gpipe": {}, "1f1b": {}, "zb-h1": {}, "zb-h2": {}, "interleaved-1f1b": {"chunks": 2}, "zb-v": {"chunks": 2}, "dualpipe-v": {"chunks": 2},
             "breadth-first": {"chunks": 2}, "zeropp": {"chunks": 2}, "helixpipe": {"chunks": 2}, "slimpipe": {"slices": 2}, "terapipe": {"slices": 2}}  # fmt: skip


class Failed(Exception):
    """A step that shows something else than it should; its figures are kept."""

    def __init__(self, why, figures=None):
        super().__init__(why)
        self.figures = figures or {}


class Machine:
    """The steps run the program, the tests and PyTorch on this device."""

    def __init__(self, options):
        self.device, self.build, self.dry = options.device, pathlib.Path(options.build).resolve(), options.device == "standin"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-gpu-"))
        self.end = time.monotonic() + options.seconds
        torch = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])
        libraries = [torch / "lib", *torch.parent.glob("nvidia/*/lib"), self.build]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PENSTOCK_TEST_DEVICE": options.device,
                            "LD_LIBRARY_PATH": ":".join([*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")])}  # fmt: skip

    def run(self, *command, **more):
        """Its standard output. Throws Failed with the end of what it printed, and where the step's time is over."""
        left = min(self.end, self.step_end) - time.monotonic()
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", timeout=max(1, left),
                                  env={**self.environment, **more}, cwd=ROOT)  # fmt: skip
        except FileNotFoundError:
            raise Failed(f"there is no {command[0]}") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(map(str, command))}: not done in {left:.0f} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))}: status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout

    def settings(self, model, **more):
        for key, value in {**model, **more}.items():
            yield "--set"
            yield f"{key}={value}"

    def train(self, model, steps, **more):
        """Seconds of the last half of the steps, the median; tokens a second; losses; bytes of each actor, measured and planned."""
        out = self.folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        settings = {"run.device": self.device, "clip": 1.0, **more}
        said = self.run(self.build / "penstock", "train", "--json", "--steps", steps, "--text", ROOT / "src", "--out", out,
                        *self.settings(model, **settings))  # fmt: skip
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        late = lines[len(lines) // 2:]
        actors = json.loads(said.splitlines()[-1])["actors"]
        return {"seconds": statistics.median(line["seconds"] for line in late),
                "tokens_per_second": statistics.median(line["tokens_per_second"] for line in late),
                "losses": [line["loss"] for line in lines],
                "planned_bytes": [actor["planned_bytes"] for actor in actors],
                "measured_bytes": [actor["measured_bytes"] for actor in actors]}  # fmt: skip

    def tests(self, pattern, **more):
        said = self.run(self.build / "tests/penstock_torch_tests", f"--gtest_filter={pattern}", **more)
        return {"tests": said.count("[       OK ]")}

    def sizes(self, model):
        return TINY if self.dry else model


def difference(losses, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected))


def versions(machine):
    """0: what is there, and a first step, for which the device's library is loaded and copies go there and back."""
    figures = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "python": platform.python_version(),
               "torch": machine.run(sys.executable, "-c", "import torch; print(torch.__version__)").strip()}  # fmt: skip
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        figures["card"] = machine.run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").strip()
    libraries = machine.run("ldd", machine.build / "penstock", *machine.build.glob("libpenstock*.so"))
    missing = [line.strip() for line in libraries.splitlines() if "not found" in line]
    if missing:
        raise Failed(f"libraries that are not found: {missing}", figures)
    return {**figures, "losses": machine.train(TINY, 1, batch=8, microbatches=4, actors=1)["losses"]}


def check(machine):
    """1: gradients of a step beside those of a sequential one on the host."""
    figures = {}
    for dtype in ("f32", "bf16"):
        said = machine.run(machine.build / "penstock", "check", "--json", "--device", machine.device, *machine.settings(TINY, dtype=dtype, actors=1))
        figures[dtype] = json.loads(said.splitlines()[-1])
    return figures


def ops(machine):
    """2: each op's sample and each kernel of our own, on the device."""
    return machine.tests("DeviceKernels.*:OwnKernels.*")


def replay(machine):
    """3: 200 steps that are replayed have the losses of issued ones, to the bit."""
    issued, replayed = (machine.train(TINY, 20 if machine.dry else 200, batch=8, microbatches=4, **{"run.replay": flag}) for flag in ("false", "true"))
    figures = {"issued": issued["seconds"], "replayed": replayed["seconds"], "steps": len(issued["losses"])}
    if issued["losses"] != replayed["losses"]:
        raise Failed("replayed steps have other losses than issued ones", figures)
    return figures


def gpt2(machine):
    """4: GPT-2 small in bf16, issued, replayed, and eager PyTorch: 8 x 1,024 at once, and 8 times 1 x 1,024."""
    model, steps = machine.sizes(GPT2), 6 if machine.dry else 20
    figures = {}
    for parts in (1, 8):
        for way in ("false", "true"):
            found = machine.train(model, steps, dtype="bf16", batch=8, microbatches=parts, actors=1, **{"run.replay": way})
            found.pop("losses")
            figures[f"{'replayed' if way == 'true' else 'issued'}, {parts} micro-batches"] = found
        figures[f"eager, {parts} micro-batches"] = eager(machine, model, parts, "none")
    return figures


def eager(machine, model, parts, compile_mode):
    arguments = [f"--{key}={value}" for key, value in model.items()]
    device = "cpu" if machine.dry else machine.device
    return json.loads(machine.run(sys.executable, ROOT / "bench/gpu/eager.py", f"--device={device}", f"--microbatches={parts}",
                                  f"--compile={compile_mode}", f"--steps={3 if machine.dry else 20}", *arguments).splitlines()[-1])  # fmt: skip


def actors(machine):
    """5: two actors on one device beside one, by schedule."""
    steps, common = 4 if machine.dry else 20, {"batch": 8, "microbatches": 4}
    one = machine.train(TINY, steps, actors=1, schedule="1f1b", **common)["losses"]
    figures = {}
    for schedule, more in SCHEDULES.items():
        found = machine.train(TINY, steps, actors=2, schedule=schedule, **common, **more)
        figures[schedule] = {"difference": difference(found["losses"], one), "seconds": found["seconds"]}
    far = {schedule: found["difference"] for schedule, found in figures.items() if found["difference"] > 1e-5}
    if far:
        raise Failed(f"other losses than one actor's: {far}", figures)
    return figures


def memory(machine):
    """6: bytes beside those planned."""
    model = machine.sizes(GPT2)
    figures = {}
    for recompute in ("none", "inputs"):
        found = machine.train(model, 4, dtype="bf16", batch=8, microbatches=2, actors=1, recompute=recompute)
        figures[recompute] = {key: found[key] for key in ("planned_bytes", "measured_bytes", "seconds")}
    return figures


def compiled(machine):
    """7: the same by torch.compile, with and without its CUDA graphs."""
    if machine.dry:
        return {"left out": "torch.compile is measured on a GPU"}
    figures = {}
    for mode in ("default", "reduce-overhead"):
        for parts in (1, 8):
            figures[f"{mode}, {parts} micro-batches"] = eager(machine, GPT2, parts, mode)
    return figures


def larger(machine):
    """8: 350 million and 1.3 billion parameters."""
    figures = {}
    for name, model in (("medium", MEDIUM), ("billion", BILLION)):
        found = machine.train(machine.sizes(model), 6, dtype="bf16", batch=8, microbatches=4, actors=1)
        figures[name] = {key: found[key] for key in ("seconds", "tokens_per_second", "planned_bytes", "measured_bytes")}
    return figures


def sanitized(machine):
    """9: kernels of our own under compute-sanitizer."""
    if not shutil.which("compute-sanitizer"):
        return {"left out": "there is no compute-sanitizer"}
    machine.run("compute-sanitizer", "--error-exitcode", 9, machine.build / "tests/penstock_torch_tests", "--gtest_filter=OwnKernels.*")
    return {"clean": True}


def slowest(machine):
    """10: what ncu says of the slowest kernels of a step."""
    if not shutil.which("ncu"):
        return {"left out": "there is no ncu"}
    return {"ncu": machine.run("ncu", "--set", "basic", "--launch-count", 5, machine.build / "penstock", "train", "--steps", 1, "--out",
                               machine.folder / "ncu", "--text", ROOT / "src", *machine.settings(GPT2, **{"run.device": machine.device}))[-8000:]}  # fmt: skip


def fused(machine):
    """11: a module of norms, gates and residuals by hand, whose chains are fused or not, beside eager PyTorch and torch.compile."""
    if not list((machine.build / "python/penstock").glob("_core*.so")):
        return {"left out": "the build has no Python package (-DPENSTOCK_MODULE=ON)"}
    sizes = {"layers": 2, "width": 32, "rows": 16, "steps": 4} if machine.dry else {"layers": 12, "width": 2048, "rows": 8192, "steps": 20}
    arguments = [f"--{key}={value}" for key, value in {**sizes, "build": machine.build}.items()]
    figures = {}
    for way in ("single", "fused", "eager") if machine.dry else ("single", "fused", "eager", "compiled"):
        device = "cpu" if machine.dry and way == "eager" else machine.device
        said = machine.run(sys.executable, ROOT / "bench/gpu/by_hand.py", f"--way={way}", f"--device={device}", *arguments)
        figures[way] = json.loads(said.splitlines()[-1])
    far = difference(figures["fused"].pop("losses"), figures["single"]["losses"])
    if far > 1e-2:
        raise Failed(f"fused chains have other losses, by {far}", figures)
    return {**figures, "difference": far}


# Each step, and its seconds at most.
STEPS = [(versions, 20), (check, 30), (ops, 60), (replay, 40), (gpt2, 70), (actors, 60), (memory, 30), (compiled, 120), (larger, 60), (sanitized, 50),
         (slowest, 30), (fused, 60)]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or standin for a dry run")
    parser.add_argument("--build", default=str(ROOT / "build-cuda"), help="folder of the build [build-cuda]")
    parser.add_argument("--out", help="results, a line of JSON for each step [gpu-DATE.jsonl]")
    parser.add_argument("--steps", help="only these, such as 3,4; steps 0 and 1 go first", default=",".join(map(str, range(len(STEPS)))))
    parser.add_argument("--seconds", type=float, default=360, help="for all of them [360]")
    options = parser.parse_args()
    chosen = sorted({0, 1} | {int(number) for number in options.steps.split(",")})
    out = pathlib.Path(options.out or f"gpu-{datetime.date.today()}.jsonl")
    machine = Machine(options)
    failed = 0
    for number in chosen:
        function, seconds = STEPS[number]
        begin = time.monotonic()
        machine.step_end = begin + (600 if machine.dry else seconds)
        result = {"step": number, "what": function.__doc__.split(": ", 1)[1]}
        try:
            result["figures"] = function(machine)
        except Failed as failure:
            failed += 1
            result |= {"failed": str(failure), "figures": failure.figures}
        result["seconds"] = round(time.monotonic() - begin, 2)
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result)[:1000], flush=True)
        if failed and number < 2:
            break  # nothing behind it could succeed
        if time.monotonic() > machine.end:
            print(f"bench/gpu.sh: {options.seconds:.0f} s are over; --steps repeats what is missing")
            break
    shutil.rmtree(machine.folder, ignore_errors=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
