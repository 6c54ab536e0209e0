# SPDX-License-Identifier: Apache-2.0
"""The package in several processes: the same results on every rank as autograd's, and what the others hear of one that does something else.

usage: ranks_test.py
"""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import ranks_script
from evaluate import sampled  # finds the package
from forked_ranks import Server
from small_modules import Case, Model, seeded, texts, token_loss

import penstock

SCRIPT = ranks_script.__file__
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]


RESERVED = []


def free_port():
    """Until this process ends nobody else is given the port: it stays bound, by a socket that lets a store, which says SO_REUSEADDR, bind it too."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    RESERVED.append(reserved)
    return reserved.getsockname()[1]


def torchrun(processes, *arguments, page="", script=SCRIPT):
    return subprocess.run([*TORCHRUN, "--master-port", str(free_port()), "--nproc-per-node", str(processes), str(script), *arguments],
                          capture_output=True, text=True, timeout=800, env={**os.environ, "OMP_NUM_THREADS": "1", "PAGE": page})


def forked(processes, *arguments, **environment):
    """The ranks' ends, without a launcher of their own, so each may end as it likes; rank 0 serves the store."""
    place = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return SERVER.run(processes, place | environment, *arguments)


def said(text, rank):
    return [line.removeprefix(f"{rank}: ") for line in text.splitlines() if line.startswith(f"{rank}: ")]


class Equal(unittest.TestCase):
    def test_two_ranks(self):
        """By torchrun, whose store serves the script's own group too."""
        schedules = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v")
        expected = [*(f"gradients {name} actors=2" for name in schedules), "five steps AdamW schedule=zb-h1", "five steps NAdam schedule=zb-h1",
                    "micro-batches of four shapes", "windows, planned batches, axes and slices", "gpt2"]
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            done = torchrun(2, "plans", page=f"{folder}/page")
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr.partition("ChildFailedError")[0][:6000])
        for rank in range(2):
            self.assertEqual(said(done.stdout, rank), expected, done.stdout[-3000:])

    def test_four_ranks(self):
        expected = ["gradients 1f1b actors=4", "gradients zb-v actors=4", *(f"gradients 1f1b actors=2 data=2 zero={zero}" for zero in (0, 3)),
                    "five steps AdamW schedule=1f1b data=2 zero=3", "goes on from a checkpoint", "five steps NAdam schedule=1f1b data=2 zero=1"]
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            ranks = forked(4, "four", PAGE=f"{folder}/page")
        for rank, done in enumerate(ranks):
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-6000:])
            self.assertEqual(said(done.stdout, rank), expected)

    def test_the_page(self):
        """The first ten lines of docs/pytorch.md, as they stand."""
        page = Path(SCRIPT).parents[2] / "docs" / "pytorch.md"
        with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
            script = Path(folder) / "train.py"
            script.write_text(re.search(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[1] + "print(f'loss {loss.item():.12f}')\n")
            done = torchrun(2, script=script)
            self.assertEqual(done.returncode, 0, done.stderr.partition("ChildFailedError")[0][:6000])
            losses = re.findall(r"loss \d\.\d+", done.stdout)
            with contextlib.redirect_stdout(io.StringIO()) as alone:
                exec(compile(script.read_text(), script, "exec"), {})
            self.assertEqual(losses, re.findall(r"loss \d\.\d+", alone.getvalue()) * 2, done.stdout)


class Mistakes(unittest.TestCase):
    def test_all_ranks_are_told(self):
        expected = (
            r"rank 1 is given other data than rank 0: step\(batch\)\n  rank 0: input is f64\[8,4\] with contents \w+\n  rank 1: input is f64\[4,4\] with contents \w+\n"
            r"  hint: all ranks are given the same batches: samplers that shuffle need the same seed on every rank",
            r"rank 1 is given other data than rank 0: step\(batch\)\n  rank 0: .* is f64\[8,4\] with contents (\w+)\n  rank 1: .* is f64\[8,4\] with contents (?!\1)",
            r"rank 1 makes another call than rank 0\n  rank 0: step\(batch\)\n  rank 1: parameter\('0.weight'\)\n  hint: all ranks make the same calls in the same order",
            r'argument "target" cannot be cut into micro-batches along dim 0\n  it has shape \[4\], "input" has \[3, 4\]',
            r'no loaded program has the state "0.wieght"\n  hint: did you mean "0.weight"',
            r'the module has no state "1.weight"',
            r"zb-h2 ",
            r"rank 1 has another command, data or configuration than rank 0\n  rank 0: \[trainer\] schedule = '1f1b'\n  rank 1: \[trainer\] schedule = 'gpipe'",
            r"there are 2 processes \(WORLD_SIZE\) for 4 devices\n  actors=2, data=2\n  hint: torchrun --nproc-per-node 4 train.py, or backend=\"threads\"",
            r"there is no backend 'mpi'\n  there are \"threads\", \"gloo\" and \"nccl\"",
            r"backend nccl sends from device to device, and the device is cpu",
            r"the trainer has no optimizer\n  hint: penstock.trainer\(",
            r"107|10\d",
        )
        for rank, done in enumerate(forked(2, "calls")):
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            *texts_said, last = said(done.stdout, rank)
            self.assertEqual(last, "steps as ever")
            self.assertEqual(len(texts_said), len(expected), texts_said)
            for text, pattern in zip(texts_said, expected, strict=True):
                self.assertRegex(json.loads(text), pattern)

    def test_on_devices_that_work_by_themselves(self):
        """NCCL is the tests' own, for the stand-in; it lies beside the program."""
        nccl = str(Path(os.environ["PENSTOCK"]).resolve().parent / "fake_nccl/libnccl.so.2")
        for rank, done in enumerate(forked(2, "device", PENSTOCK_NCCL=nccl)):
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            *refusals, last = said(done.stdout, rank)
            self.assertEqual(len(refusals), 2)
            for refusal in refusals:
                self.assertRegex(refusal, r"10\d")
            self.assertEqual(last, "as threads")

    def test_a_rank_ends(self):
        """Each time the process that goes on says what it heard, and ends."""
        ended, lost = "rank 1 has ended\n  hint: see what that process says", "device 1 was lost: its process has ended"
        first = "rank 0 has ended, rank 1 was at step(batch)\n  hint: all ranks make the same calls"
        cases = {"1-raises": (ended, 1), "1-stops": (ended, 0), "1-interrupted": (ended, 130), "1-killed": (lost, -9), "0-raises": (first, 1),
                 "0-killed": ("rank 0 was lost in step(batch)", -9)}
        for how, (text, code) in sampled(cases.items(), 2):
            with self.subTest(how):
                results = forked(2, "ends", how)
                who = int(how[0])
                other = results[1 - who]
                self.assertIn(results[who].returncode, (code, -2) if code == 130 else (code,), results[who].stderr[-2000:])
                self.assertEqual(other.returncode, 0, other.stderr[-2000:])
                heard, last = said(other.stdout, 1 - who)
                self.assertEqual(last, "ends")
                self.assertTrue(json.loads(heard).startswith(text), heard)


class Alone(Case):
    def test_without_a_launcher(self):
        with self.assertRaisesRegex(penstock.PenstockError, 'takes a process for each device, and no launcher started this one\n  hint: torchrun --nproc-per-node 2 train.py'):
            penstock.trainer(seeded(Model), texts(), loss=token_loss, backend="gloo")


if __name__ == "__main__":
    SERVER = Server(ranks_script.run)
    unittest.main()
