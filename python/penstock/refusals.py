# SPDX-License-Identifier: Apache-2.0
"""Refusals of graphs that cannot be run as they were meant, with the module and the line that the reason comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .arguments import Argument
from .errors import PenstockError
from .joint import Joint, gives_tensors, is_backward, tensors_of
from .places import module_of, op_name, place_of, refusal, user_name
from .sizes import Sizes, UnknownSize, symbols_of, written_conditions
from .text import SIZES
from .watch import PYTHON_ONLY

OF_PYTHON = re.compile(r"^debug: registered at [^\n]*\.py:\d+$", re.MULTILINE)  # in what the dispatcher says of an op's schema


def check_joint(forward: GraphModule, joint: Joint, arguments: Sequence[Argument]) -> None:
    """Throws PenstockError for what the joint graph cannot say, or what only Python can run. `forward`: the graph that it was made of."""
    for node in joint.computed:
        _check_op(node)
    _check_mutations(forward, joint, arguments)
    _check_randomness(forward, joint)


def check_sizes(forward: GraphModule, arguments: Sequence[Argument], environment: ShapeEnv) -> None:
    """Throws PenstockError for sizes and conditions on them that cannot be written: they are known before the backward is made, which takes
    most of the time."""
    sizes, nodes = Sizes(), forward.graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    symbols_of([(argument.name, node.meta["val"]) for argument, node in zip(arguments, inputs)], environment, sizes)
    for node in nodes:
        if not gives_tensors(node) or not node.users:
            continue
        given = [value.meta["val"] for value in node.all_input_nodes if isinstance(value.meta.get("val"), (torch.SymInt, torch.SymFloat))]
        try:
            for size in (*given, *(size for tensor in tensors_of(node) if tensor is not None for size in tensor.shape)):
                sizes.text(size)
        except UnknownSize as unknown:
            raise refusal(node, str(unknown), SIZES) from None
    written_conditions(environment, sizes)


def _check_op(node: Node) -> None:
    if not isinstance(node.target, torch._ops.OpOverload):
        raise refusal(node, "it runs graphs of its own", "write it with ops on tensors: torch.where instead of torch.cond")
    if OF_PYTHON.search(torch._C._dispatch_dump(op_name(node))):
        raise refusal(node, *PYTHON_ONLY)
    if node.target._schema.is_mutable:
        raise refusal(node, "it writes to its operands")
    if isinstance(node.meta["val"], (list, tuple)) and any(isinstance(value, (list, tuple)) for value in node.meta["val"]):
        raise refusal(node, "it gives lists of tensors among others")
    if is_backward(node) and draws(node):
        raise refusal(node, "the backward draws random numbers")


def _check_mutations(forward: GraphModule, joint: Joint, arguments: Sequence[Argument]) -> None:
    for output in joint.outputs:
        if output.role != "mutation" or output.of == "buffer":
            continue
        if output.of == "argument":
            name = arguments[int(output.name)].name
            what, hint = f'the module writes to its argument "{name}"', "let it write to a copy: x = x.clone()"
            sources = [node for node in forward.graph.nodes if node.op == "placeholder"][int(output.name):][:1]
        else:
            what = f'the module writes to its parameter "{user_name(output.name)}"'
            hint = "the optimizer updates parameters; make it a buffer"
            sources = [node for node in forward.graph.nodes if node.op == "get_attr" and node.target == output.name]
        writer = next((node for node in forward.graph.nodes if _writes_to(node, sources)), None)
        raise PenstockError(what, place_of(writer) if writer else [], hint)


def places_of_updates(forward: GraphModule, joint: Joint) -> dict[str, list[str]]:
    """Where the module updates each of its buffers, by its name in the graph: the module and the line."""
    places = {}
    for output in joint.outputs:
        if output.role == "mutation" and output.of == "buffer":
            sources = [node for node in forward.graph.nodes if node.op == "get_attr" and node.target == output.name]
            readers = [node for node in forward.graph.nodes if _writes_to(node, sources) or any(source in node.all_input_nodes for source in sources)]
            writer = next((node for node in readers if _writes_to(node, sources)), readers[-1] if readers else None)
            places[output.name] = place_of(writer) if writer else []
    return places


def _writes_to(node: Node, sources: Sequence[Node]) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    while isinstance(written, Node) and written not in sources and written.op == "call_function" and written.args:
        written = written.args[0]
    return written in sources


def draws(node: Node) -> bool:
    """True if the op, as it is called, draws random numbers."""
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = {a.name: node.args[i] if i < len(node.args) else node.kwargs.get(a.name, a.default_value)
             for i, a in enumerate(node.target._schema.arguments)}
    off = any(given.get(name) is False for name in ("train", "training"))
    never = any(isinstance(given.get(name), (int, float)) and given[name] == 0 for name in ("p", "dropout", "dropout_p"))
    return not off and not never and given.get("num_layers") != 1 and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _check_randomness(forward: GraphModule, joint: Joint) -> None:
    """Some ops, such as LSTMs of several layers, lose their dropout when the backward is made."""
    drawing = {module_of(node) for node in joint.source.graph.nodes if node.op == "call_function" and draws(node)}
    for node in forward.graph.nodes:
        if node.op == "call_function" and draws(node) and module_of(node) not in drawing:
            raise refusal(node, "its dropout is lost when the backward is made",
                          "give it dropout=0, and put nn.Dropout between modules of one layer each")
