# SPDX-License-Identifier: Apache-2.0
"""Tests of the program share this: running it, and reading what it writes."""

import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from drawn import SOAK, drawn_seed, sampled  # noqa: E402, F401

PROGRAM = os.environ["PENSTOCK"]
# The tests' own NCCL, for the stand-in: it lies beside the program.
os.environ["PENSTOCK_NCCL"] = str(pathlib.Path(PROGRAM).resolve().parent / "fake_nccl/libnccl.so.2")

# A model that trains a step in milliseconds.
SMALL = [
    "--set", "model.layers=4", "--set", "width=32", "--set", "heads=2", "--set", "context=16",
    "--set", "validation_every=0", "--set", "validation_batches=1", "--batch", "8", "--microbatches", "4",
]  # fmt: skip


def start(*arguments, program=PROGRAM, environment=None, **options):
    return subprocess.Popen(
        [program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="strict",
        env={**os.environ, **(environment or {})},
        **options,
    )


class Result:
    def __init__(self, process, timeout=300):  # seconds that only what hangs takes
        self.out, self.err = process.communicate(timeout=timeout)
        self.code = process.returncode

    def json(self):
        return json.loads(self.out)


def run(*arguments, **options):
    return Result(start(*arguments, **options))


RESERVED = []


def free_port():
    """For a program that is about to listen there. Until this process ends nobody else is given the port: it stays bound, by a socket that does not
    listen and lets others that say SO_REUSEADDR bind it too, as the store of a run does."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    RESERVED.append(reserved)
    return reserved.getsockname()[1]


def start_all(size, *arguments, port=None, environments=None, **options):
    """`environments`: of each process, beside what a launcher gives it."""
    ranks = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    return [start(*arguments, environment={**ranks, "RANK": str(rank), **(environments[rank] if environments else {})}, **options) for rank in range(size)]


def run_all(size, *arguments, **options):
    return [Result(process) for process in start_all(size, *arguments, **options)]


def read_tensors(path):
    """The bytes of every tensor of a safetensors file, by name."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    return {
        name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"
    }


def read_state(checkpoint):
    """The bytes of every tensor of a checkpoint, whatever files it or its pieces are in."""
    pieces = {}
    for file in pathlib.Path(checkpoint).glob("*.safetensors"):
        for stored, value in read_tensors(file).items():
            name, begin = re.fullmatch(r"(.*?)(?:\[(\d+):\d+\])?", stored).groups()
            pieces.setdefault(name, []).append((int(begin or 0), value))
    return {name: b"".join(value for _, value in sorted(found)) for name, found in pieces.items()}


def read_pieces(checkpoint):
    """The bytes of what each file of a checkpoint holds, tensors or pieces of them, by file and name."""
    return {
        (file.name, stored): value
        for file in pathlib.Path(checkpoint).glob("*.safetensors")
        for stored, value in read_tensors(file).items()
    }


def read_metrics(folder):
    """The steps of a run: of several lines of one step the last counts."""
    lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(400)))

    def train_arguments(self, out, steps, *more):
        return ["train", *SMALL, "--text", self.text, "--out", self.folder / out, "--steps", steps, *more]

    def train(self, out, steps, *more):
        result = run(*self.train_arguments(out, steps, *more))
        self.assertEqual(result.code, 0, result.err)
        return result

    def assert_fails(self, result, *parts):
        """Exit code 1, an error on stderr that has these parts, and nothing on stdout."""
        self.assertEqual(result.code, 1, result.err)
        self.assertIn("error: ", result.err)
        for part in parts:
            self.assertIn(part, result.err)
        self.assertEqual(result.out, "")
