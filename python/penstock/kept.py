# SPDX-License-Identifier: Apache-2.0
"""Exports that are kept in a folder, each in a file named by its key (`cache.export_key`)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from . import saved
from .errors import PenstockError
from .exported import KEY, Exported, check_state, read_exported
from .pretrained_files import parse_size

log = logging.getLogger("penstock")
LIMIT = "4GB"  # some thousand exports of large models
ENTRY = re.compile(r"[0-9a-f]{64}\.safetensors")
LEFT = re.compile(r"[0-9a-f]{64}\.safetensors\.\d+\.part")
OLD = 86400  # seconds after which nobody writes a file any more


@dataclass(frozen=True)
class Place:
    """The folder where exports are kept, and whether the user named it: one that Penstock chose itself is done without where it cannot be used."""

    folder: Path
    named: bool


def chosen_place(cache: str | os.PathLike | None) -> Place | None:
    """The folder that the argument `cache` names, or else the environment's PENSTOCK_CACHE, of which "off" or nothing means none; where there is neither,
    exports under penstock in the user's cache folder: XDG_CACHE_HOME, or .cache in the home."""
    given = os.environ.get("PENSTOCK_CACHE") if cache is None else cache
    if given is not None:
        return None if os.fspath(given) in ("", "off") else Place(Path(given), True)
    try:
        own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # the user has no home
        return None
    return Place(Path(own) / "penstock" / "exports", False)


def kept_or_made(place: Place, key: str, own: Mapping[str, torch.Tensor], make: Callable[[], Exported]) -> Exported:
    """The export that the folder has of this key, with the module's `own` tensors, or a new one, which is written there. Of what the folder has then
    those go that were not used for longest, until it has as many bytes as it may. Processes may use one folder at once.

    Throws PenstockError for a folder that the user named and that cannot be made or written to, or is not the user's alone, and for a limit that is none.
    """
    most = limit()
    try:
        return _kept_or_made(place.folder, key, own, make, most)
    except _Unusable as error:
        if place.named:
            raise PenstockError(error.args[0].what, error.args[0].details, error.args[0].hint) from None
        log.info("exports are not kept: %s", error.args[0].what)
        return error.args[1] or make()


class _Unusable(Exception):
    """The folder cannot be used: what is wrong, as a PenstockError, and the export where it was made already."""


def _kept_or_made(folder: Path, key: str, own: Mapping[str, torch.Tensor], make: Callable[[], Exported], most: int) -> Exported:
    with _in_words(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(folder, f"keep exports in {folder}", "for each user a folder of its own, which no other may write to: chmod go-w")
    path = folder / f"{key}.safetensors"
    found, note = _found(path, key, own)
    if found is not None:
        with contextlib.suppress(OSError):  # another process may have removed it
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return Exported(found.header, found.text, {**own, **found.state}, found.notes)
    exported = make()
    constants = {name: tensor for name, tensor in exported.state.items() if name not in own}
    kept = Exported(exported.header, exported.text, constants, exported.notes)
    exported = Exported(exported.header, exported.text, exported.state, exported.notes + note)
    with _in_words(folder, exported):
        saved.write(path, {**kept.metadata(), KEY: key}, constants, mode=0o600)
        make_room(folder, most)
    return exported


def limit() -> int:
    """The bytes that a folder may have, as the environment's PENSTOCK_CACHE_LIMIT says. Throws PenstockError where that is no size."""
    given = os.environ.get("PENSTOCK_CACHE_LIMIT") or LIMIT
    try:
        return parse_size(int(given) if given.isdecimal() else given)
    except PenstockError:
        raise PenstockError(f"PENSTOCK_CACHE_LIMIT={given} is no size", hint='bytes, or "4GB", "500MB"') from None


def make_room(folder: Path, most: int) -> None:
    """Removes what was not used for longest while the folder's exports have more than so many bytes, but the last one; and what a process that ended
    while it wrote has left."""
    entries = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process may have removed it
            status = entry.stat(follow_symlinks=False)
            if LEFT.fullmatch(entry.name) and time.time() - status.st_mtime > OLD:
                os.unlink(entry)
            elif ENTRY.fullmatch(entry.name):
                entries.append((max(status.st_atime_ns, status.st_mtime_ns), status.st_size, entry.path))
    entries.sort()
    bytes_of_all = sum(size for _, size, _ in entries)
    for _, size, path in entries[:-1]:
        if bytes_of_all <= most:
            break
        Path(path).unlink(missing_ok=True)
        bytes_of_all -= size


@contextlib.contextmanager
def _in_words(folder: Path, exported: Exported | None = None) -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        raise _Unusable(error, exported) from None
    except OSError as error:
        wrong = PenstockError(f"cannot keep exports in {folder}: {error.filename or folder}: {error.strerror}",
                              hint="cache=, or the environment's PENSTOCK_CACHE, names a folder of the user's that can be made and written to")
        raise _Unusable(wrong, exported) from None


def _found(path: Path, key: str, own: Mapping[str, torch.Tensor]) -> tuple[Exported | None, list[str]]:
    """The export in the file; None where there is no file, or a wrong one, and then a note says why it is not taken."""
    try:
        check_private(path, f"take {path}")
        found = read_exported(path, key)
        check_state(found.header, {**own, **found.state}, path)
        return found, []
    except (FileNotFoundError, saved.Changed):  # another process removed it, or wrote it anew
        return None, []
    except (OSError, PenstockError) as error:
        return None, [f"exported anew, not taken from the cache: {error.what if isinstance(error, PenstockError) else error}"]


def check_private(path: Path, use: str, hint: str = "") -> None:
    """Throws PenstockError where another user owns the file or folder, or may write to it; OSError where it is not there."""
    status = path.stat()
    if status.st_uid != os.getuid():
        raise PenstockError(f"cannot {use}: it belongs to another user (number {status.st_uid})", hint=hint)
    if status.st_mode & 0o022:
        raise PenstockError(f"cannot {use}: other users may write to it (mode {status.st_mode & 0o777:03o})", hint=hint)
