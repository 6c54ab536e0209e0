# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests that hold the package against the program, and what it refuses against a text."""

import json
import os
import subprocess
from pathlib import Path

import evaluate  # noqa: F401  (it finds the package)

import penstock

PROGRAM = os.environ.get("PENSTOCK", "build/penstock")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(*arguments):
    """The program's standard output. The program must succeed."""
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def printed_json(*arguments):
    """The object that the program prints with --json."""
    return json.loads(printed(*arguments, "--json"))


def message(call):
    """The text of the PenstockError that the call throws, which it must."""
    try:
        call()
    except penstock.PenstockError as error:
        return str(error)
    raise AssertionError("nothing was thrown")
