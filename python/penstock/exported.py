"""An exported module: header, graph and state, also as a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import saved
from .errors import PenstockError

FORMAT = "exported 1"
# An expression in a graph's text. No other text between braces consists of these characters alone: attributes have "=".
EXPRESSION = re.compile(r"\{([\w +\-*/%(),]+)\}")


@dataclass
class Exported:
    """A module's training step for one micro-batch, as the program reads it.

    `header` says what the graph's inputs and outputs are, and which sizes its symbols stand for; `text` is the graph ("penstock graph 1",
    with sizes as expressions in braces); `state` holds parameters, buffers and constants by their names in `state_dict()`, the module's own
    tensors, not copies; `notes` says what the user may want to know.
    """

    header: dict[str, Any]
    text: str
    state: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)
    places: dict[str, list[str]] = field(default_factory=dict)  # by buffer, where the module updates it: for messages, not in files

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """True if the graph computes what the module does for these sizes, by symbol ("s0")."""
        ranges = all(symbol["min"] <= sizes[name] <= symbol["max"] for name, symbol in self.header["symbols"].items())
        return ranges and all(eval(instantiate(f"{{{left}}} {relation} {{{right}}}", sizes))
                              for left, relation, right in self.header["conditions"])

    def graph(self, sizes: Mapping[str, int] | None = None) -> str:
        """The graph for these sizes, by symbol; for the example's without. Throws PenstockError for sizes that do not fit."""
        sizes = sizes or {name: symbol["example"] for name, symbol in self.header["symbols"].items()}
        if not self.fits(sizes):
            raise PenstockError(f"the exported graph is not for sizes {', '.join(f'{n} = {s}' for n, s in sizes.items())}",
                                [f"{name} is {s['name']}, from {s['min']} to {s['max']}" for name, s in self.header["symbols"].items()],
                                "export the module again, with an example of these sizes")
        return instantiate(self.text, sizes)

    def save(self, path: str | os.PathLike) -> None:
        """Writes one file, which `load_exported` and the program read. Tensors on the meta device are written without values."""
        absent = {name: [saved.NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in self.state.items() if tensor.is_meta}
        metadata = {"header": json.dumps(self.header), "graph": self.text, "notes": json.dumps(self.notes), "absent": json.dumps(absent),
                    "order": json.dumps(list(self.state))}
        saved.write(path, metadata, {name: tensor for name, tensor in self.state.items() if not tensor.is_meta})


def with_constants_named(exported: Exported, own: str) -> Exported:
    """The same with names of their own for tensors that the export made of constants: "constant.OWN.0" for "constant.0"."""
    def renamed(name: str) -> str:
        return re.sub(r"^constant\.(?=\d+$)", f"constant.{own}.", name)

    inputs = [{**i, "name": renamed(i["name"])} for i in exported.header["inputs"]]
    text = re.sub(r"(?<=%)constant\.\d+(?![\w.])", lambda found: renamed(found[0]), exported.text)
    return Exported({**exported.header, "inputs": inputs}, text, {renamed(name): tensor for name, tensor in exported.state.items()}, exported.notes, exported.places)


def load_exported(path: str | os.PathLike) -> Exported:
    """Reads what `Exported.save` wrote. Throws PenstockError where the file is another's."""
    metadata, state = saved.read(path)
    if not metadata.keys() >= {"header", "graph"}:
        raise PenstockError(f"{path}: this is no exported module", hint="penstock.export(...).save(path) writes one")
    header = json.loads(metadata["header"])
    if header.get("penstock") != FORMAT:
        raise PenstockError(f'{path}: this is "{header.get("penstock")}"; this version reads "{FORMAT}"', hint="export the module again")
    for name, (dtype, shape) in json.loads(metadata.get("absent", "{}")).items():
        state[name] = torch.empty(shape, dtype=saved.DTYPES[dtype], device="meta")
    order = json.loads(metadata.get("order", "null")) or list(state)
    return Exported(header, metadata["graph"], {name: state[name] for name in order}, json.loads(metadata.get("notes", "[]")))


def instantiate(text: str, sizes: Mapping[str, int]) -> str:
    """The graph's text with numbers in place of its expressions, `sizes` by symbol ("s0")."""
    known = {"__builtins__": {}, "max": max, "min": min, **sizes}
    return EXPRESSION.sub(lambda found: str(eval(found[1], known)), text)  # the text is ours: it has no other names
