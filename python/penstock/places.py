# SPDX-License-Identifier: Apache-2.0
"""Where in the user's program something is: the module by its path, and the line of source."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.fx import Node

from .errors import PenstockError

OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*')
CALL_NUMBER = re.compile(r"@\d+")  # a module that is called again: "layers.0@1"
NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"


def user_name(name: str) -> str:
    """A name in the traced module as the user knows it: that of the wrapper's "model" is empty."""
    return "" if name in ("model", "loss") else name.removeprefix("model.")


def module_of(node: Node) -> str:
    """The path of the innermost module that a forward node belongs to, "" for the user's module itself."""
    paths = [entry[0] for entry in (node.meta.get("nn_module_stack") or {}).values()]
    return "" if not paths or paths[-1] == NO_MODULE else user_name(CALL_NUMBER.sub("", paths[-1]))


def place_of(node: Node) -> list[str]:
    """Details for an error that is about a node: its module and its line, as far as they are known."""
    lines = [(file, int(line)) for file, line in FRAME.findall(node.meta.get("stack_trace") or "")]
    return _details(module_of(node), lines)


def place_of_frames(frames: Iterable[tuple[FrameType, int]], modules: Mapping[int, str]) -> list[str]:
    """Details for an error while tracing: the innermost module of `modules` (path by id) that runs, and the innermost line outside of
    PyTorch."""
    path, root, lines = "", "", []
    for frame, line in frames:
        part = frame.f_locals.get("self")
        path = modules.get(id(part), path)
        root = type(part).__name__ if modules.get(id(part)) == "model" else root
        lines.append((frame.f_code.co_filename, line))
    details = _details(user_name(path), lines)
    return [f"in the {root} itself", *details] if root and not user_name(path) else details


def place_of_error(error: BaseException, modules: Mapping[int, str]) -> list[str]:
    return place_of_frames(traceback.walk_tb(error.__traceback__), modules)


def place_now(modules: Mapping[int, str]) -> list[str]:
    frames, frame = [], sys._getframe(1)
    while frame:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return place_of_frames(reversed(frames), modules)


def shown_module(module: Any, modules: Mapping[int, str]) -> str:
    path = user_name(modules.get(id(module), ""))
    return f"in module {path} ({type(module).__name__})" if path else f"in the {type(module).__name__} itself"


def refusal(node: Node, reason: str, hint: str = "") -> PenstockError:
    """An op that cannot be exported, with its place."""
    return PenstockError(f"{op_name(node)} cannot be exported: {reason}", place_of(node), hint)


def op_name(node: Node) -> str:
    """The dispatcher's name, with namespace and overload: aten::add.Tensor."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(node.target)
    return schema.name + ("." + schema.overload_name if schema.overload_name else "")


def _details(path: str, lines: list[tuple[str, int]]) -> list[str]:
    users = [(file, line) for file, line in lines if not file.startswith(OWN) and not file.startswith("<")]
    details = [f"in module {path}"] if path else []
    if users:
        file, line = users[-1]
        details.append(f"{file}:{line}: {linecache.getline(file, line).strip()}")
    return details
