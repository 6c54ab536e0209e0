# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM at random times, once or twice: every command ends soon, with the documented code, and leaves no part of a file.

With PENSTOCK_SOAK in the environment (make soak) 500 times instead of a few; PENSTOCK_SEED chooses the times.
"""

import json
import random
import re
import shutil
import signal
import time
import unittest

from support import SMALL, SOAK, ProgramTest, Result, drawn_seed, run, start

# A machine may be busy. What the soak test prints is how long it took.
LIMIT = 60
ROUNDS = 72 if SOAK else 2
STEPS = 30


class Stop(ProgramTest):
    def commands(self, out):
        """By name, each command with its files below the folder `out`."""
        train = self.train_arguments(out / "run", STEPS, "--set", "checkpoint_every=4", "--set", "validation_every=3", "--json")
        return {
            "compile": ["compile", *SMALL, "--set", "model.layers=32", "--json"],
            "profile": ["profile", *SMALL, "--text", self.text, "--rounds", 2, "--out", out / "costs.json", "--json"],
            "plan": ["plan", "gpt", "--set", "model.layers=4", "--devices", 4, "--batch", 8, "--seconds", 1, "--out", out / "plan.json", "--json"],
            "search": ["schedule", "search", "--actors", 4, "--microbatches", 8, "--memory-limit", 3, "--seconds", 2, "--out", out / "table.csv", "--json"],
            "train": train,
            "generate": ["generate", self.folder / "trained", "--tokens", 100, "--json"],
            "launch": ["launch", "-n", 2, "--", *train, "--backend", "gloo"],
        }  # fmt: skip

    def assert_whole(self, out, killed):
        """All files below `out`; a second signal may leave one with a name that nothing reads."""
        for path in (path for path in out.rglob("*") if path.is_file()):
            if re.search(r"\.part\b", str(path)):
                self.assertTrue(killed, path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".csv":
                self.assertEqual(run("verify", path).code, 0)
        for manifest in out.glob("run/checkpoint-*/manifest.json"):
            if manifest.parent.suffix != ".part":
                for name, file in json.loads(manifest.read_text())["files"].items():
                    self.assertEqual((manifest.parent / name).stat().st_size, file["bytes"])

    def stop_once(self, arguments, out, seconds, draws):
        """Signals the command after a random part of the `seconds` that it takes; what it took to end."""
        first, second = (draws.choice([signal.SIGINT, signal.SIGTERM]) for _ in range(2))
        twice = draws.random() < 0.3
        process = start(*arguments)
        time.sleep(draws.random() * seconds)
        if process.poll() is None:
            process.send_signal(first)
            begin = time.monotonic()
            if twice:
                time.sleep(draws.random() * 0.1)
                process.send_signal(second)
        else:
            twice, begin = False, time.monotonic()
        result = Result(process, timeout=LIMIT)
        took = time.monotonic() - begin
        if result.code == 0:  # it was done, or past the last instruction that a signal can stop
            json.loads(result.out)
        else:
            expected = {128 + first, -first}  # the latter before the program has begun
            self.assertIn(result.code, expected | ({128 + second, -second} if twice else set()), result.err)
            self.assertNotIn("error: ", result.err)
        self.assert_whole(out, twice)
        return took

    def test_at_random_times(self):
        seed = drawn_seed()
        draws = random.Random(seed)
        self.train("trained", 2)
        for name in self.commands(self.folder):
            out = self.folder / "out"
            out.mkdir()
            begin = time.monotonic()
            whole = run(*self.commands(out)[name])
            seconds = time.monotonic() - begin
            self.assertEqual(whole.code, 0, whole.err)
            took = []
            for round in range(ROUNDS):
                shutil.rmtree(out)
                out.mkdir()
                with self.subTest(seed=seed, command=name, round=round):
                    took.append(self.stop_once(self.commands(out)[name], out, seconds, draws))
            shutil.rmtree(out)
            print(f"{name}: {len(took)} times in {seconds:.1f} s; ended within {max(took):.2f} s")


if __name__ == "__main__":
    unittest.main()
