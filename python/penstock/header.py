# SPDX-License-Identifier: Apache-2.0
"""The header of an exported module: what its graph's inputs, outputs and symbols are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .arguments import COUNT, Argument
from .capture import Captured
from .errors import PenstockError
from .exported import FORMAT
from .joint import Input, Joint, Output
from .places import user_name
from .sizes import Sizes, symbols_of, written_conditions
from .text import DTYPES

CONSTANT = re.compile(r"constant_(\d+)")
KINDS = ("argument", "parameter", "buffer")  # of inputs, in the graph's order
ROLES = ("loss", "buffer", "output", "gradient")  # of outputs, in the graph's order


@dataclass(frozen=True)
class Described:
    """The header; the nodes of the graph's inputs, by their names, and outputs, in its order; the state by name."""

    header: dict[str, Any]
    inputs: list[tuple[str, Node]]
    outputs: list[Node]
    state: dict[str, torch.Tensor]


def describe(model: str, captured: Captured, joint: Joint, arguments: Sequence[Argument], sizes: Sizes, reduction: str | None) -> Described:
    """Names the inputs that some op reads, the outputs and the symbols. Throws PenstockError for a condition on sizes that cannot be
    written."""
    state = {state_name(name): tensor.detach() for name, tensor in (captured.parameters | captured.buffers).items()}
    read = {joint.value(node) for op in joint.computed for node in op.all_input_nodes}
    read |= {joint.value(output.node) for output in joint.outputs}
    given = {i.name: i.node for i in joint.inputs if i.role == "argument"}
    nodes = [(argument, given[str(i)]) for i, argument in enumerate(arguments)]
    split = [node for argument, node in nodes if argument.role == "split"]
    read |= {split[0]} if read.isdisjoint(split) else set()  # it says how many samples there are
    updated = {output.name for output in joint.outputs if output.role == "mutation"}
    read |= {i.node for i in joint.inputs if i.role == "buffer" and i.name in updated}
    read |= _needed_for_sizes(joint, captured.shape_env, [node for _, node in nodes], read)
    symbols = symbols_of([(argument.name, node.meta["val"]) for argument, node in nodes if node in read], captured.shape_env, sizes)
    gradients = {output.name for output in joint.outputs if output.role == "gradient"}
    inputs = [(_input(i, arguments, gradients, captured.aliases), i.node)
              for kind in KINDS for i in joint.inputs if i.role == kind and i.node in read]
    for i, node in inputs:
        if node.meta["val"].dtype not in DTYPES:
            what = "argument" if i["role"] in ("split", "whole") else i["role"]
            known = f"Penstock has {' '.join(DTYPES.values())}"
            raise PenstockError(f'{what} "{i["name"]}" is a tensor of {node.meta["val"].dtype}', [known],
                                "convert it before the module reads it: images.float() / 255, indices.long()")
    outputs = [(_output(output, captured.results), output.node) for output in joint.outputs]
    outputs.sort(key=lambda output: ROLES.index(output[0]["role"]))
    samples = next(node for node in split if node in read).meta["val"].shape[0]
    names = {i["name"] for i, _ in inputs}
    header = {
        "penstock": FORMAT,
        "torch": torch.__version__.split("+")[0],
        "model": model,
        "symbols": symbols,
        "conditions": written_conditions(captured.shape_env, sizes),
        "samples": samples if isinstance(samples, int) else sizes.expression(samples.node.expr),
        "growth": captured.growth is not None,  # whether numbers that depend on the samples are written twice: {6.0|12.0}
        "loss": reduction or ("sum" if any(i["name"] == COUNT and i["role"] == "whole" for i, _ in inputs) else "mean"),
        "inputs": [i for i, _ in inputs],
        "outputs": [o for o, _ in outputs],
        "unread": [{"name": name, "aliases": tied} if (tied := _aliases(captured.aliases, name)) else {"name": name}
                   for name in state if name not in names],
        "passed": [{"name": argument.name, "shape": [size if isinstance(size, int) else None for size in node.meta["val"].shape]}
                   for argument, node in nodes if node not in read],  # arguments that are no inputs; None: of any size
    }
    return Described(header, _distinct([(i["name"], node) for i, node in inputs]), [node for _, node in outputs], state)


def _needed_for_sizes(joint: Joint, environment: ShapeEnv, arguments: Sequence[Node], read: set[Node]) -> set[Node]:
    """The arguments of which no op reads a value, but the graph or a condition a size that no argument has that is read."""
    needed = {symbol for guard in environment.guards for symbol in environment.replace(guard.expr).free_symbols}
    for node in joint.source.graph.nodes:
        if node.op == "call_function":
            needed |= _symbols(node.meta.get("val"))
    for node in arguments:
        if node in read:
            needed -= _symbols(node.meta["val"])
    found = set()
    for node in arguments:
        if own := needed & _symbols(node.meta["val"]):
            found.add(node)
            needed -= own
    return found


def _symbols(value: Any) -> set[Any]:
    """The symbols in the sizes of a node's value."""
    if isinstance(value, (list, tuple)):
        return set().union(*map(_symbols, value))
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def state_name(name: str) -> str:
    """The name in state_dict() of a parameter or buffer of the traced module; constants have names of their own."""
    constant = CONSTANT.fullmatch(name)
    return f"constant.{constant[1]}" if constant else user_name(name)


def _aliases(aliases: Mapping[str, list[str]], name: str) -> list[str]:
    return [state_name(alias) for first, others in aliases.items() if state_name(first) == name for alias in others]


def _input(i: Input, arguments: Sequence[Argument], gradients: set[str], aliases: Mapping[str, list[str]]) -> dict[str, Any]:
    if i.role == "argument":
        argument = arguments[int(i.name)]
        return {"name": argument.name, "role": argument.role}
    trained = {"trained": i.name in gradients} if i.role == "parameter" else {}
    tied = _aliases(aliases, state_name(i.name))
    return {"name": state_name(i.name), "role": i.role, **trained, **({"aliases": tied} if tied else {})}


def _output(output: Output, results: Sequence[str]) -> dict[str, Any]:
    if output.role == "result":
        name = results[int(output.name)]
        return {"role": "loss"} if name == "loss" else {"role": "output", "name": name}
    return {"role": "gradient" if output.role == "gradient" else "buffer", "name": state_name(output.name)}


def _distinct(inputs: Sequence[tuple[str, Node]]) -> list[tuple[str, Node]]:
    """An argument may be named as a parameter is: in the text, the later of two gets a number."""
    taken: set[str] = set()
    distinct = []
    for name, node in inputs:
        candidates = (name, *(f"{name}.{k}" for k in range(1, len(inputs) + 1)))
        taken.add(free := next(candidate for candidate in candidates if candidate not in taken))
        distinct.append((free, node))
    return distinct
