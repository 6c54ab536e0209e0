# SPDX-License-Identifier: Apache-2.0
"""Where stages begin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .errors import PenstockError
from .exported import Exported

ORIGIN = re.compile(r'origin="((?:[^"\\]|\\.)*)"')


def begins_of(split: Sequence[str] | Mapping[str, object] | None, exported: Exported) -> list[str] | None:
    """The modules at which stages begin: `split` itself or, of a split_spec as torch.distributed.pipelining takes it ({"layers.1":
    SplitPoint.BEGINNING}), what begins there and what follows a SplitPoint.END, in the order in which they run.

    Throws PenstockError for paths of modules that do not run, for an END with nothing behind it, and for what is no SplitPoint.
    """
    if not isinstance(split, Mapping):
        return list(split) if split is not None else None
    origins = _origins(exported)
    begins = {}
    for path, point in split.items():
        mine = [i for i, origin in enumerate(origins) if _is_in(origin, path)]
        if not mine:
            raise PenstockError(f'no op comes from the module "{path}", where split says that a stage begins or ends')
        kind = getattr(point, "name", None)
        if kind == "BEGINNING":
            begins[path] = mine[0]
        elif kind == "END":
            begins.update([_behind(origins, path, mine[-1])])
        else:
            raise PenstockError(f'split says {point!r} of "{path}"', hint="torch.distributed.pipelining.SplitPoint.BEGINNING, or .END")
    return sorted(begins, key=begins.__getitem__)


def modules_of(exported: Exported) -> list[str]:
    """The paths of the modules that run, in that order, those that hold them in front."""
    return list(dict.fromkeys(".".join(parts[: i + 1]) for origin in _origins(exported) for parts in [origin.split(".")] for i in range(len(parts))))


def _origins(exported: Exported) -> list[str]:
    """The modules of the forward's ops."""
    return [found[1] for line in exported.text.splitlines() if 'phase="backward"' not in line and (found := ORIGIN.search(line))]


def _behind(origins: Sequence[str], path: str, last: int) -> tuple[str, int]:
    """The outermost module that begins behind the last op of another, and its first op. Ops of modules around both go with what they read."""
    for i, origin in enumerate(origins[last + 1:], last + 1):
        if origin and not _is_in(path, origin):
            parts, around = origin.split("."), path.split(".")
            common = next((k for k, (one, other) in enumerate(zip(parts, around)) if one != other), min(len(parts), len(around)))
            return ".".join(parts[: common + 1]), i
    raise PenstockError(f'nothing runs behind the module "{path}", where split says that a stage ends')


def _is_in(origin: str, path: str) -> bool:
    return origin == path or origin.startswith(path + ".")
