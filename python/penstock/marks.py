# SPDX-License-Identifier: Apache-2.0
"""Where each op of a joint graph comes from: the module that it belongs to, and the forward op that a backward op belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import Node

from .joint import Joint, is_backward
from .places import module_of


@dataclass(frozen=True)
class Marks:
    """`origin`: a module's path. `sequence`: a forward op's place in the graph; a backward op has its forward op's."""

    sequence: int
    origin: str
    backward: bool


def marks_of(joint: Joint) -> dict[Node, Marks]:
    """The marks of the nodes that are computed.

    PyTorch's seq_nr is a counter of the process, and ops that are not differentiated repeat the number of the last one that is: so a
    number's first op is the one whose backward has it. A sum of a value's gradients has a number of its own: it takes the least of the
    sequences of what it adds.
    """
    forward = [node for node in joint.computed if not is_backward(node)]
    marks = {node: Marks(sequence, module_of(node), False) for sequence, node in enumerate(forward)}
    first: dict[int, Node] = {}
    for node in sorted((*joint.same, *forward)):
        if not is_backward(node):
            first.setdefault(node.meta["seq_nr"], joint.op(node))
    for node in joint.computed:
        if is_backward(node):
            sources = [marks[source] for source in map(joint.op, node.all_input_nodes) if source in marks]
            own = None if _is_sum(node) else marks.get(first.get(node.meta["seq_nr"]))
            given = own or _least(sources)
            marks[node] = Marks(given.sequence, given.origin, True)
    return marks


def _is_sum(node: Node) -> bool:
    return node.target is torch.ops.aten.add.Tensor and all(map(is_backward, node.all_input_nodes))


def _least(marks: Iterable[Marks]) -> Marks:
    return min(marks, key=lambda m: m.sequence, default=Marks(0, "", True))
