# SPDX-License-Identifier: Apache-2.0
"""The traced step of an optimiser, cut into a graph for each parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.utils._pytree as pytree
from torch.fx import GraphModule, Node

from .errors import PenstockError
from .joint import Joint, changes_nothing, gives_tensors, needed_for
from .marks import Marks
from .places import op_name, place_of, refusal
from .sizes import Sizes
from .text import graph_text


def step_graphs(graph: GraphModule, optimiser: str, members: Sequence[tuple[int, Sequence[str]]]) -> list[str]:
    """The text of each parameter's update.

    The graph goes from (parameters, gradients, what is kept of each, a rate for each group, step) to [next parameter, next kept] of each. Members
    are the group and the names of what is kept. Inputs of a text are "parameter", "gradient", "learning_rate", "step" and these names; its outputs
    the next parameter and the next kept, in their order. Throws PenstockError, with op and line, for what has no form in it, and for a parameter
    whose next value depends on another's.
    """
    _constants_as_ops(graph)
    nodes = list(graph.graph.nodes)
    inputs = iter([node for node in nodes if node.op == "placeholder"])
    parameters, gradients = [next(inputs) for _ in members], [next(inputs) for _ in members]
    kept = [[next(inputs) for _ in names] for _, names in members]
    *rates, step = inputs
    outputs = iter(pytree.tree_leaves(graph.graph.output_node().args[0]))
    own = [[parameter, gradient, *states] for parameter, gradient, states in zip(parameters, gradients, kept)]
    _check_each_by_itself(nodes, own, optimiser)
    same = {node: node.args[0] for node in nodes if changes_nothing(node)}
    texts = []
    for (group, names), inner in zip(members, own):
        wanted = [next(outputs) for _ in range(len(names) + 1)]
        needed = needed_for(wanted, same)
        computed = [node for node in nodes if node in needed and node not in same and gives_tensors(node)]
        marks = {node: Marks(sequence, "", False) for sequence, node in enumerate(computed)}
        given = [("parameter", inner[0]), ("gradient", inner[1]), ("learning_rate", rates[group]), ("step", step), *zip(names, inner[2:])]
        texts.append(graph_text(Joint(graph, [], [], None, same, computed), marks, given, wanted, Sizes()))
    return texts


def _constants_as_ops(graph: GraphModule) -> None:
    """Scalars that are made of numbers while tracing become ops that make them."""
    for node in list(graph.graph.nodes):
        if node.op != "get_attr":
            continue
        value = getattr(graph, node.target)
        if value.dim() > 0:
            raise refusal(next(iter(node.users)), f"it reads a tensor of shape {list(value.shape)} that step() makes of numbers",
                          "keep it as state of a parameter")
        with graph.graph.inserting_before(node):
            made = graph.graph.call_function(torch.ops.aten.full.default, ([], value.item()), {"dtype": value.dtype})
        made.meta["val"] = value
        node.replace_all_uses_with(made)
        graph.graph.erase_node(node)


def _check_each_by_itself(nodes: Sequence[Node], own: Sequence[Sequence[Node]], optimiser: str) -> None:
    read: dict[Node, set[int]] = {node: {number} for number, inner in enumerate(own) for node in inner}
    for node in nodes:
        if node.op == "call_function":
            read[node] = set().union(*(read.get(operand, set()) for operand in node.all_input_nodes))
            if len(read[node]) > 1:
                raise PenstockError(f"the step of {optimiser} cannot be exported: {op_name(node)} reads several parameters", place_of(node),
                                    "a device updates each parameter by itself: clip=... limits the gradients' global norm")
