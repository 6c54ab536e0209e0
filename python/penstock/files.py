# SPDX-License-Identifier: Apache-2.0
"""Files that a user names: what is wrong with one is said as a PenstockError."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .errors import PenstockError


def read_text(path: str | os.PathLike) -> str:
    """The text of a file. Throws PenstockError where it is none, OSError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PenstockError(f"{path} is no text: {error.reason} at byte {error.start}") from None


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a text in JSON; `where` begins the message. Throws PenstockError where it is none."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"{where} is no JSON: {error}") from None
    return value
