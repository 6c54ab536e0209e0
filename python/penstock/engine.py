# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from . import _core
from .errors import PenstockError

T = TypeVar("T")


def told(call: Callable[[], T]) -> T:
    """The call's result; an error of the engine is thrown as the package's own."""
    try:
        return call()
    except _core.Error as error:
        lines = [line.strip() for line in str(error).split("\n")]
        hints = [line.removeprefix("hint: ") for line in lines[1:] if line.startswith("hint: ")]
        details = [line for line in lines[1:] if not line.startswith("hint: ")]
        raise PenstockError(lines[0], details, "".join(hints[:1])) from None


class Entered:
    """One call at a time, in the process that made this."""

    def __init__(self) -> None:
        self.lock, self.pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self.pid:
            raise PenstockError("the trainer belongs to another process", ["its devices are threads, which a fork does not take along"],
                                "make the trainer in the process that uses it")
        if not self.lock.acquire(blocking=False):
            raise PenstockError("a step is running", hint="wait until it ends before the next call")

    def __exit__(self, *_: object) -> None:
        self.lock.release()
