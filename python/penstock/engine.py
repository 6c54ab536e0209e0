"""Calls of the engine."""

from __future__ import annotations

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
