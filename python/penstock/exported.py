# SPDX-License-Identifier: Apache-2.0
"""An exported module: header, graph and state, also as a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import saved
from .errors import PenstockError
from .expressions import holds, size_of, with_sizes
from .files import parse_json

FORMAT = "exported 1"
KEY = "key"  # the metadata's key of what an export in a cache was made of
ROLES = {"inputs": ("split", "whole", "parameter", "buffer"), "outputs": ("loss", "buffer", "output", "gradient")}


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
        return ranges and all(holds(condition, sizes) for condition in self.header["conditions"])

    def takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """True if the arguments that are no inputs of the graph have the sizes that the trace may have read of them."""
        return all(argument["name"] in shapes and len(shapes[argument["name"]]) == len(argument["shape"]) and
                   all(known in (None, size) for known, size in zip(argument["shape"], shapes[argument["name"]])) for argument in self.header.get("passed", []))

    def graph(self, sizes: Mapping[str, int] | None = None) -> str:
        """The graph for these sizes, by symbol; for the example's without. Throws PenstockError for sizes that do not fit."""
        sizes = sizes or {name: symbol["example"] for name, symbol in self.header["symbols"].items()}
        if not self.fits(sizes):
            raise PenstockError(f"the exported graph is not for sizes {', '.join(f'{n} = {s}' for n, s in sizes.items())}",
                                [f"{name} is {s['name']}, from {s['min']} to {s['max']}" for name, s in self.header["symbols"].items()],
                                "export the module again, with an example of these sizes")
        return with_sizes(self.text, sizes)

    def save(self, path: str | os.PathLike) -> None:
        """Writes one file, which `load_exported` and the program read. Tensors on the meta device are written without values."""
        saved.write(path, self.metadata(), {name: tensor for name, tensor in self.state.items() if not tensor.is_meta})

    def metadata(self) -> dict[str, str]:
        """All but the tensors' values, as a file has it."""
        absent = {name: [saved.NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in self.state.items() if tensor.is_meta}
        return {"header": json.dumps(self.header), "graph": self.text, "notes": json.dumps(self.notes), "absent": json.dumps(absent),
                "order": json.dumps(list(self.state))}


def with_constants_named(exported: Exported, own: str) -> Exported:
    """The same with names of their own for tensors that the export made of constants: "constant.OWN.0" for "constant.0"."""
    def renamed(name: str) -> str:
        return re.sub(r"^constant\.(?=\d+$)", f"constant.{own}.", name)

    inputs = [{**i, "name": renamed(i["name"])} for i in exported.header["inputs"]]
    text = re.sub(r"(?<=%)constant\.\d+(?![\w.])", lambda found: renamed(found[0]), exported.text)
    return Exported({**exported.header, "inputs": inputs}, text, {renamed(name): tensor for name, tensor in exported.state.items()}, exported.notes, exported.places)


def load_exported(path: str | os.PathLike) -> Exported:
    """Reads what `Exported.save` wrote. Nothing in the file is run. Throws PenstockError where the file is another's, or damaged."""
    exported = read_exported(path)
    check_state(exported.header, exported.state, path)
    return exported


def check_state(header: dict[str, Any], state: Mapping[str, torch.Tensor], path: str | os.PathLike) -> None:
    """Throws PenstockError where the state has not all that the graph reads."""
    absent = [i["name"] for i in header["inputs"] if i["role"] in ("parameter", "buffer") and i["name"] not in state]
    if absent:
        raise PenstockError(f'{path}: this exported module has no "{absent[0]}", which its graph reads', hint="export the module again")


def read_exported(path: str | os.PathLike, key: str | None = None) -> Exported:
    """The same of a file that may have some of the state alone; with `key`, of one that was made of what the key says."""
    metadata, state = saved.read(path, sealed=key is not None)
    if not metadata.keys() >= {"header", "graph"}:
        raise PenstockError(f"{path}: this is no exported module", hint="penstock.export(...).save(path) writes one")
    if metadata.get(KEY) != key:
        raise PenstockError(f"{path}: this is an entry of a cache, made of what another key says")
    found = {name: parse_json(metadata.get(name, "null"), f"{path}: {name} of this exported module")
             for name in ("header", "absent", "order", "notes")}
    header, absent, order, notes = found.values()
    if not isinstance(header, dict) or header.get("penstock") != FORMAT:
        version = header.get("penstock") if isinstance(header, dict) else None
        raise PenstockError(f'{path}: this is "{version}"; this version reads "{FORMAT}"', hint="export the module again")
    checked = _Header(header, f"{path}: this exported module")
    checked.check()
    for name, entry in checked.mapping(absent or {}, "absent").items():
        type = saved.type_of(*entry) if isinstance(entry, list) and len(entry) == 2 else None
        checked.need(type is not None, f'dtype and shape of "{name}" are none')
        state[name] = type
    order, notes = checked.texts(order or list(state), "order"), checked.texts(notes or [], "notes")
    checked.need(len(order) == len(state) and set(order) == state.keys(), "order does not name the tensors that there are")
    return Exported(header, metadata["graph"], {name: state[name] for name in order}, notes)


class _Header:
    """Checks that a header is one, so that whoever reads it later finds what it says. `where` begins the messages."""

    def __init__(self, header: dict[str, Any], where: str) -> None:
        self.header, self.where = header, where

    def need(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise PenstockError(f"{self.where} is damaged: {what}", hint="export the module again")

    def mapping(self, value: Any, what: str) -> dict[str, Any]:
        self.need(isinstance(value, dict), f"{what} is no object")
        return value

    def texts(self, value: Any, what: str) -> list[str]:
        self.need(isinstance(value, list) and all(isinstance(text, str) for text in value), f"{what} is no list of texts")
        return value

    def named(self, part: str) -> list[dict[str, Any]]:
        """The entries of a list of objects, each with a name or, of an output, perhaps without."""
        entries = self.header.get(part)
        self.need(isinstance(entries, list), f"{part} is no list")
        for entry in entries:
            self.mapping(entry, f"an entry of {part}")
            self.need(isinstance(entry.get("name", "" if part == "outputs" else None), str), f"an entry of {part} has no name")
            self.need(part not in ROLES or entry.get("role") in ROLES[part], f'"{entry.get("name")}" of {part} has no role that there is')
            self.need(isinstance(entry.get("trained", False), bool), f'trained of "{entry.get("name")}" is neither true nor false')
            self.texts(entry.get("aliases", []), f'aliases of "{entry.get("name")}"')
        return entries

    def check(self) -> None:
        header = self.header
        for name in ("torch", "model"):
            self.need(isinstance(header.get(name), str), f"{name} is no text")
        self.need(isinstance(header.get("growth", False), bool), "growth is neither true nor false")
        self.need(header.get("loss") in ("mean", "sum"), "loss is neither mean nor sum")
        for part in ("inputs", "outputs", "unread"):
            self.named(part)
        examples = {name: self.example(name, symbol) for name, symbol in self.mapping(header.get("symbols"), "symbols").items()}
        for argument in self.named("passed") if "passed" in header else []:
            shape = argument.get("shape")
            self.need(isinstance(shape, list) and all(size is None or saved.is_count(size) for size in shape), f'"{argument["name"]}" of passed has no shape')
        samples = header.get("samples")
        self.need(saved.is_count(samples) or isinstance(samples, str), "samples is no size")
        if isinstance(samples, str):
            size_of(samples, examples)
        self.need(isinstance(header.get("conditions"), list), "conditions is no list")
        for condition in header["conditions"]:
            self.need(len(self.texts(condition, "a condition")) == 3, "a condition is not two expressions and a relation")
            holds(condition, examples)

    def example(self, name: str, symbol: Any) -> int:
        self.mapping(symbol, f'symbol "{name}"')
        self.need(isinstance(symbol.get("name"), str) and re.fullmatch(r".*\.\d{1,3}", symbol["name"], re.ASCII | re.DOTALL) is not None,
                  f'symbol "{name}" names no argument and dim')
        self.need(all(saved.is_count(symbol.get(bound)) for bound in ("min", "example", "max")), f'symbol "{name}" has bounds that are no sizes')
        return symbol["example"]
