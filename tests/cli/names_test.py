# SPDX-License-Identifier: Apache-2.0
"""The names that users may use: flags, keys, schedules, planners and the like. All that there was before tables became one structure is still there, or stands
in GONE with the reason.

usage: names_test.py   With --list it prints the names of today, one a line, as tests/fixtures/before_one_table/names.txt has those of then.
"""

import pathlib
import re
import sys
import unittest

from support import run

THEN = pathlib.Path(__file__).resolve().parents[1] / "fixtures/before_one_table/names.txt"

# Name -> why it went and what its users take instead.
GONE = {
    **{f"flag data {kind} {flag}": "examples/docstrings.py makes pairs of functions and docstrings; nothing used those of headers and manual pages"
       for kind in ("docstrings", "headers", "man") for flag in ("--context", "--help", "--json", "--out", "-h")},
    "flag plan --cpus": "plans have stages on devices only, so a graph needs costs of all its nodes on a device",
}  # fmt: skip

# Option -> its newer name; the old one is still taken, and --help shows the new one.
RENAMED = {
    "flag plan --memory": "--memory-limit", "flag plan --micro-batches": "--microbatch-sizes",
    "flag schedule search --memory-limit": "--activation-limit", "flag schedule compare --memory-limit": "--activation-limit",
}  # fmt: skip


def subcommands(*command):
    """Every command below this one, and itself."""
    below = re.findall(r"^  ([a-z]+) {2,}", run(*command, "--help").out, re.MULTILINE)
    return [command, *(found for name in below for found in subcommands(*command, name))]


def flags(command):
    listed = re.findall(r"^  (-[\w,-]+)", run(*command, "--help").out, re.MULTILINE)
    return [" ".join(["flag", *command, flag]) for line in listed for flag in line.split(",")]


def known(*command):
    """The names that the hint lists where one is not known."""
    return re.search(r"(?:known|planners): (.*)", run(*command).err)[1].split(", ")


def keys(model):
    return [f"key {each['key']}" for each in run("config", "--set", f"model.name={model}", "--json").json()["keys"]]


def first_words(*command):
    return re.findall(r"^([\w-]+)", run(*command).out, re.MULTILINE)


def names():
    models = known("config", "--set", "model.name=none")
    found = [flag for command in subcommands() for flag in flags(command)]
    found += [key for model in models for key in keys(model)]
    found += [f"model {name}" for name in models]
    found += [f"optimiser {name}" for name in known("config", "--set", "optimiser=none")]
    found += [f"schedule {name}" for name in first_words("schedule", "list")]
    found += [f"planner {name}" for name in re.findall(r"^  ([\w-]+): ", run("plan", "--help").out.partition("Planners:")[2], re.MULTILINE)]
    found += [f"batch planner {name}" for name in known("config", "--set", "batch.planner=none")]
    found += [f"batch kind {name.rstrip(':')}" for name in first_words("batch", "list")]
    return sorted(set(found))


class Names(unittest.TestCase):
    def test_nothing_went_without_a_reason(self):
        then, now = set(THEN.read_text().splitlines()), set(names())
        print("came:", *sorted(now - then), sep="\n  ")
        self.assertEqual(then - now, set(GONE) | set(RENAMED))
        for old, new in RENAMED.items():
            command, option = old.split()[1:-1], old.split()[-1]
            for name in (option, new):  # one that there is not would have a hint, or be said to be none
                self.assertIn(f"error: {name} needs a value", run(*command, *(["x"] if command == ["plan"] else []), name).err)
        for name, reason in GONE.items():
            self.assertTrue(reason, name)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(*names(), sep="\n")
    else:
        unittest.main()
