# SPDX-License-Identifier: Apache-2.0
"""Files that the package wrote before tables became one structure (tests/fixtures/before_one_table/README.md), and the names that it had then.

usage: old_files_test.py   With --list it prints the names of today, one a line, as python_names.txt there has those of then.
"""

import inspect
import json
import sys
import unittest
from pathlib import Path

import torch
from evaluate import run_exported  # finds the package

import penstock

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/before_one_table"

INPUTS, CLASSES = torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(8) % 3

# Name -> why it went and what its users take instead.
GONE = {"Planned.compile(updating)": "a step beside the one that updates is compiled by compile_beside"}


def names():
    """The names in the package, with the arguments of functions and public methods."""
    found = []
    for name in penstock.__all__:
        value = getattr(penstock, name)
        parts = {f"{name}.{method}": each for method, each in inspect.getmembers(value, inspect.isfunction) if not method.startswith("_")}
        for part, function in {**({name: value} if inspect.isfunction(value) else {}), **parts}.items():
            found += [f"{part}({argument})" for argument in inspect.signature(function).parameters if argument != "self"]
        found += [name, *parts]
    return sorted(set(found))


class OldFiles(unittest.TestCase):
    def test_an_exported_module(self):
        exported = penstock.load_exported(FIXTURES / "exported.safetensors")
        given = [each["name"] for each in exported.header["inputs"] if each["role"] not in ("parameter", "buffer")]
        sizes = {name: symbol["example"] for name, symbol in exported.header["symbols"].items()}
        found = run_exported(exported, dict(zip(given, (INPUTS, CLASSES), strict=True)), sizes)
        self.assertAlmostEqual(found["loss"].item(), json.loads((FIXTURES / "exported.json").read_text())["loss"], delta=1e-5)

    def test_plans_and_profiles(self):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        batch, loss = (INPUTS, CLASSES), torch.nn.functional.cross_entropy
        read = penstock.Planned.load(FIXTURES / "planned.json")
        made = penstock.plan(module, batch, loss=loss, microbatches=2, seconds=0.2, profile=FIXTURES / "profile.json")
        for plan in (read, made):
            self.assertLess(penstock.check(module, batch, loss=loss, plan=plan).gradients, 1e-5)
        self.assertIn("on 2 threads of this machine", str(made))
        self.assertIn("stage", str(penstock.Planned.load(FIXTURES / "plans/best.json")))

    def test_nothing_went_without_a_reason(self):
        then, now = set((FIXTURES / "python_names.txt").read_text().splitlines()), set(names())
        print("came:", *sorted(now - then), sep="\n  ")
        self.assertEqual(then - now, set(GONE))
        for name, reason in GONE.items():
            self.assertTrue(reason, name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--list"]:
        print(*names(), sep="\n")
    else:
        unittest.main()
