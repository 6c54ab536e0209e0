# SPDX-License-Identifier: Apache-2.0
"""The one way the package reports a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral


class PenstockError(Exception):
    """A user's mistake: what was found, one detail a line (where, the values, the rule), and a way out.

    Its text is written as the program writes its errors::

        <what>
          <detail>
          hint: <way out>
    """

    def __init__(self, what: str, details: Iterable[str] = (), hint: str = "") -> None:
        self.what, self.details, self.hint = what, tuple(details), hint
        lines = [what, *(f"  {detail}" for detail in self.details), *([f"  hint: {hint}"] if hint else [])]
        super().__init__("\n".join(lines))


def check_whole(name: str, value: object, least: int, most: int = 2**31 - 1) -> None:
    """Throws PenstockError, by the name of the argument, where the value is no whole number that the engine takes: from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= most:
        raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"{name} is a whole number, at least {least} and below 2^{most.bit_length()}")


def check_is(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    """Throws PenstockError, by the name of the argument, where the value is of none of these types, which are `words`; a bool is no number."""
    flag = isinstance(value, bool) and kind is not bool
    if flag or not isinstance(value, kind):
        raise PenstockError(f"{name}={value!r} is not what {name} takes", hint=f"{name} is {words}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The hint that names what the user may have meant; "" where nothing is near."""
    found = difflib.get_close_matches(str(name), list(known), 1)
    return f'did you mean "{found[0]}"?' if found else ""
