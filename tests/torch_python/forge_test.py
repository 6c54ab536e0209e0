# SPDX-License-Identifier: Apache-2.0
"""A client of the rendezvous store that does not know the run's secret commands no rank.

usage: forge_test.py PENSTOCK   (the program)
"""

import contextlib
import datetime
import os
import pathlib
import re
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import torch.distributed

PENSTOCK = ""
SMALL = ["--set", "model.layers=4", "--set", "width=32", "--set", "heads=2", "--set", "context=16", "--set", "validation_every=0"]


def free_port():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store.port


def save_state(folder):
    """A command as rank 0 writes it, with an empty state source and step."""
    text = str(folder).encode()
    empty = struct.pack("<Q", 0)
    source = bytes([0]) + struct.pack("<q", 0) + empty + empty
    step = struct.pack("<qq", 0, 0) + bytes([0]) + empty
    return b"PSC1" + bytes([3]) + struct.pack("<Q", 0) + empty + source + step + bytes([0]) + struct.pack("<Q", len(text)) + text


class Forge(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text").write_text("".join(f"line {i}: the quick brown fox\n" for i in range(400)))

    def start(self):
        self.port = free_port()
        gloo = ["--backend", "gloo", "--text", self.folder / "text", "--steps", 100000, "--out", self.folder / "run"]
        process = subprocess.Popen(
            [PENSTOCK, "launch", "-n", "2", "--port", str(self.port), "--", "train", *SMALL, *map(str, gloo)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        metrics = self.folder / "run/metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        return process, torch.distributed.TCPStore("127.0.0.1", self.port, is_master=False, timeout=datetime.timedelta(seconds=20))

    def test_a_forged_message_is_not_heard(self):
        process, store = self.start()
        target = self.folder / "elsewhere"
        target.mkdir()
        message = save_state(target)
        for sealed in (message, message + secrets.token_bytes(8)):
            for number in range(2000):
                for name in (f"penstock//to/1/{number}", f"penstock/to/1/{number}"):
                    store.set(name, struct.pack("<Q", len(message)) + sealed)
        lines = (self.folder / "run/metrics.jsonl").read_text().count("\n")
        while (self.folder / "run/metrics.jsonl").read_text().count("\n") < lines + 20:
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.terminate()
        out, err = process.communicate()
        self.assertEqual(process.returncode, 143, err)
        self.assertEqual(list(target.iterdir()), [])

    def test_what_is_written_over_is_refused(self):
        """Whoever lists the keys finds, sooner or later, what a rank that is held up is about to read."""
        process, store = self.start()
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (second,) = (int(c) for c in children if b"RANK=1" in pathlib.Path(f"/proc/{c}/environ").read_bytes().split(b"\0"))
        message = save_state(self.folder)
        forged = struct.pack("<Q", len(message)) + message + secrets.token_bytes(8)
        deadline = time.monotonic() + 300
        with contextlib.suppress(ProcessLookupError, RuntimeError):  # until the rank has ended, or the store
            while process.poll() is None and time.monotonic() < deadline:
                os.kill(second, signal.SIGSTOP)
                time.sleep(0.2)  # for what rank 0 has to say
                for key in store.list_keys():
                    if re.fullmatch(r"penstock/[0-9a-f]+", key):
                        store.set(key, forged)
                os.kill(second, signal.SIGCONT)
                time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.kill(second, signal.SIGCONT)  # the store may have ended while the rank was held up, which then has something to say still
        try:  # the store is gone before the launcher has seen its ranks end
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("is not from one of them", err)
        self.assertFalse((self.folder / "device-1.safetensors").exists())


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
