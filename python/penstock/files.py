# SPDX-License-Identifier: Apache-2.0
"""Files that a user names: what is wrong with one is said as a PenstockError."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import PenstockError, did_you_mean


def read_text(path: str | os.PathLike) -> str:
    """The text of a file. Throws PenstockError where it is none, OSError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PenstockError(f"{path} is no text: {error.reason} at byte {error.start}") from None


def read_named(path: Any, hint: str = "") -> str:
    """The same of a file that an argument names. Throws PenstockError also for what is no path, and where it cannot be read, with the hint."""
    try:
        return read_text(checked_path(path))
    except OSError as error:
        raise PenstockError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a text in JSON; `where` begins the message. Throws PenstockError where it is none."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"{where} is no JSON: {error}") from None
    return value


def checked_ending(path: Any, what: str, endings: Sequence[str]) -> str:
    """The path's ending without its dot. Throws PenstockError where it is none of these, and for what is no path; `what` is to be written."""
    ending = checked_path(path).suffix.removeprefix(".")
    if ending not in endings:
        raise PenstockError(f"{path}: {what} cannot be written as {ending!r}", hint=did_you_mean(ending, endings) or (
            f"the endings are .{', .'.join(endings)}" if len(endings) > 1 else f"its ending is .{endings[0]}"))
    return ending


def checked_path(path: Any) -> Path:
    """Throws PenstockError for what is no path."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise PenstockError(f"path={path!r} is no path of a file")
    return Path(path)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """The path of a file beside this one, which takes its place when the block ends, so that one that is cut off never has the name. Throws PenstockError
    where it cannot be written."""
    target = Path(os.path.realpath(checked_path(path)))  # a link stays one
    special = target.exists() and not target.is_file()  # /dev/stdout, which nothing can take the place of
    beside = target if special else target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield beside
        if not special:
            beside.replace(target)
    except OSError as error:
        raise PenstockError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if not special:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes the text, whole or not at all. Throws PenstockError where it cannot be written."""
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="")
