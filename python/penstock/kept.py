"""Exports that are kept in a folder, each in a file named by its key (`cache.export_key`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from . import saved
from .errors import PenstockError
from .exported import KEY, Exported, check_state, read_exported


def kept_or_made(folder: Path, key: str, own: Mapping[str, torch.Tensor], make: Callable[[], Exported]) -> Exported:
    """The export that the folder has of this key, with the module's `own` tensors, or a new one, which is written there.

    Throws PenstockError for a folder that cannot be made or written to, or is not the user's alone.
    """
    with _in_words(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder, f"keep exports in {folder}", "for each user a folder of its own, which no other may write to: chmod go-w")
    path = folder / f"{key}.safetensors"
    found, note = _found(path, key, own)
    if found is not None:
        return Exported(found.header, found.text, {**own, **found.state}, found.notes)
    exported = make()
    constants = {name: tensor for name, tensor in exported.state.items() if name not in own}
    kept = Exported(exported.header, exported.text, constants, exported.notes)
    with _in_words(folder):
        saved.write(path, {**kept.metadata(), KEY: key}, constants, mode=0o600)
    return Exported(exported.header, exported.text, exported.state, exported.notes + note)


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PenstockError(f"cannot keep exports in {folder}: {error.filename or folder}: {error.strerror}",
                            hint="cache=, or the environment's PENSTOCK_CACHE, names a folder of the user's that can be made and written to") from None


def _found(path: Path, key: str, own: Mapping[str, torch.Tensor]) -> tuple[Exported | None, list[str]]:
    """What the file has; None where there is no file, or a wrong one, of which the note says why it is not taken."""
    try:
        check_private(path, f"take {path}")
        found = read_exported(path, key)
        check_state(found.header, {**own, **found.state}, path)
        return found, []
    except FileNotFoundError:
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
