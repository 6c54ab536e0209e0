# SPDX-License-Identifier: Apache-2.0
"""The one way the package reports a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The hint that names what the user may have meant; "" where nothing is near."""
    found = difflib.get_close_matches(str(name), list(known), 1)
    return f'did you mean "{found[0]}"?' if found else ""
