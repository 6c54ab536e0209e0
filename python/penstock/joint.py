# SPDX-License-Identifier: Apache-2.0
"""A joint forward and backward graph as plain data: its inputs and outputs by role, and the nodes that are computed."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch.fx import GraphModule, Node

aten = torch.ops.aten


@dataclass(frozen=True)
class Input:
    """`role`: "parameter" or "buffer", named as in the traced module, or "argument", named by its number."""

    role: str
    name: str
    node: Node


@dataclass(frozen=True)
class Output:
    """`role`: "result", named by its number, "gradient" (of a parameter), or "mutation" (of what `of` says)."""

    role: str
    name: str
    node: Node
    of: str = ""


@dataclass(frozen=True)
class Joint:
    """`source` has all nodes. `same`: those that are not computed because they have another's value. `computed`: ops in order, each needed
    by an output."""

    source: GraphModule
    inputs: list[Input]
    outputs: list[Output]
    tangent: Node | None
    same: dict[Node, Node]
    computed: list[Node]

    def value(self, node: Node) -> Node:
        """The node whose value this one has."""
        while node in self.same:
            node = self.same[node]
        return node

    def op(self, node: Node) -> Node:
        """The op, or input, that makes this node's value, perhaps as one of several."""
        node = self.value(node)
        return node.args[0] if node.target is operator.getitem else node


def is_backward(node: Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def tensors_of(node: Node) -> list[torch.Tensor | None]:
    """The (fake) tensors that an op gives; None for each that it leaves out, and for numbers."""
    value = node.meta.get("val")
    return [v if isinstance(v, torch.Tensor) else None for v in (value if isinstance(value, (list, tuple)) else [value])]


def gives_tensors(node: Node) -> bool:
    """True for ops of the dispatcher; computations of sizes are none."""
    return node.op == "call_function" and node.target is not operator.getitem and any(t is not None for t in tensors_of(node))


def read_joint(graph: GraphModule) -> Joint:
    """The graph's inputs and outputs by their descriptors. Nodes that change nothing, and those that nobody needs, are left out."""
    nodes = list(graph.graph.nodes)
    inputs = [described for node in nodes if node.op == "placeholder" for described in _input(node)]
    tangent = next((node for node in nodes if node.op == "placeholder" and isinstance(node.meta["desc"], TangentAOTInput)), None)
    for node in nodes:  # PyTorch leaves some of what gradients are made into without a tag, such as the expand of a sum's
        if node.op == "call_function" and any(is_backward(read) or read is tangent for read in node.all_input_nodes):
            node.meta["partitioner_tag"] = "is_backward"
    same = {node: node.args[0] for node in nodes if changes_nothing(node)}
    output = graph.graph.output_node()
    outputs = [described for pair in zip(output.args[0], output.meta["desc"]) for described in _output(*pair)]
    needed = needed_for([o.node for o in outputs], same)
    computed = [node for node in nodes if node in needed and node not in same and gives_tensors(node)]
    return Joint(graph, inputs, outputs, tangent if tangent in needed else None, same, computed)


def _input(node: Node) -> Iterable[Input]:
    described = node.meta["desc"]
    if isinstance(described, (ParamAOTInput, BufferAOTInput)):
        yield Input("parameter" if isinstance(described, ParamAOTInput) else "buffer", described.target, node)
    elif isinstance(described, PlainAOTInput):
        yield Input("argument", str(described.idx), node)


def _output(node: Node | None, described: object) -> Iterable[Output]:
    if node is None:
        return
    if isinstance(described, PlainAOTOutput):
        yield Output("result", str(described.idx), node)
    elif isinstance(described, GradAOTOutput) and isinstance(described.grad_of, ParamAOTInput):
        yield Output("gradient", described.grad_of.target, node)
    elif isinstance(described, InputMutationAOTOutput):
        source = described.mutated_input
        name = str(source.idx) if isinstance(source, PlainAOTInput) else source.target
        yield Output("mutation", name, node, {ParamAOTInput: "parameter", BufferAOTInput: "buffer"}.get(type(source), "argument"))


COPIES = frozenset((aten.detach.default, aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default, aten.lift_fresh.default,
                    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten._to_copy.default))


def changes_nothing(node: Node) -> bool:
    """Values are held densely and in one way, so copies, and views into the shape that there is, are what they copy."""
    if node.op != "call_function" or node.target not in COPIES:
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]
    return before.dtype == after.dtype and len(before.shape) == len(after.shape) and all(map(_equal, before.shape, after.shape))


def _equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    return (a.node.expr if isinstance(a, torch.SymInt) else a) == (b.node.expr if isinstance(b, torch.SymInt) else b)


def needed_for(wanted: Iterable[Node], same: dict[Node, Node]) -> set[Node]:
    """All nodes that these are made of."""
    needed, open_nodes = set(), list(wanted)
    while open_nodes:
        node = open_nodes.pop()
        if node not in needed:
            needed.add(node)
            open_nodes += [same[node]] if node in same else node.all_input_nodes
    return needed
