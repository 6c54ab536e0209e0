# SPDX-License-Identifier: Apache-2.0
"""Clusters that are planned for, as plain dicts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from . import _core
from .engine import told
from .errors import PenstockError, check_whole, did_you_mean
from .files import read_named


class Cluster(TypedDict, total=False):
    """A dict of what a cluster's TOML file has (docs/planning.md, "The cluster"): GB and GB/s of 10^9 bytes, microseconds.

        Cluster(devices=[{"count": 64, "device": "h100-sxm"}], levels=[{"size": 8, "link": "nvlink4"}, {"size": 8, "link": "infiniband-ndr"}])
    """

    name: str
    devices: Sequence[Mapping[str, Any]]  # of each: count [1], device (published) or memory, speed, host
    levels: Sequence[Mapping[str, Any]]  # innermost first; of each: size, and link (published) or bandwidth and latency
    between: Sequence[Mapping[str, Any]]  # exceptions; of each: devices, two of them, and their link


def cluster_of(cluster: Cluster | Mapping[str, Any] | str | os.PathLike | None, devices: int, device: str | None, link: str) -> Any:
    """The engine's cluster: of a dict, of a TOML file's path, or so many equal devices of published figures. Throws PenstockError for what is none."""
    if cluster is None:
        check_whole("devices", devices, 1)
        return told(lambda: _core.Cluster(devices, device or "a100-80", link))
    if isinstance(cluster, Mapping):
        text = _toml_of(cluster)
        return told(lambda: _core.Cluster(text, "the cluster"))
    if str(cluster) == "local":
        raise PenstockError('cluster="local": this machine is measured by the program', [],
                            "penstock plan CONFIG.toml --cluster local; or of a module, plan(..., profile=penstock.profile(...))")
    text = read_named(cluster, "a cluster is a dict, or the path of a TOML file: docs/planning.md says its keys")
    return told(lambda: _core.Cluster(text, str(cluster)))


def _toml_of(cluster: Mapping[str, Any]) -> str:
    for key in cluster:
        if key not in Cluster.__annotations__:
            raise PenstockError(f"a cluster has no {key!r}", [], did_you_mean(key, Cluster.__annotations__) or f"it has {', '.join(Cluster.__annotations__)}")
    lines = [f"name = {json.dumps(str(cluster['name']))}"] if "name" in cluster else []
    for group in ("devices", "levels", "between"):
        for entry in cluster.get(group, ()):
            if not isinstance(entry, Mapping):
                raise PenstockError(f"{group} of a cluster has {entry!r}", hint=f'each is a dict, {{"{"size" if group == "levels" else "count"}": 8, ...}}')
            lines += [f"[[{group}]]", *(f"{key} = {_value(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value) if isinstance(value, (str, bool)) else repr(value)
