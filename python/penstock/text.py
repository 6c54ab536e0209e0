# SPDX-License-Identifier: Apache-2.0
"""Writing a joint graph as the text that the program reads ("penstock graph 1")."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from .growth import NUMBERS, Growth
from .joint import Joint, is_backward, tensors_of
from .marks import Marks
from .places import op_name, refusal
from .sizes import Sizes, UnknownSize

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
}
# Arguments of ops that do not change values: where and how a tensor lies is the executor's.
SKIPPED_ARGUMENTS = frozenset(("device", "layout", "pin_memory", "memory_format", "generator"))
SIZES = "sizes may depend on the sizes of arguments alone: use masks, or pass the number"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.$:/-]*(?<!:)", re.ASCII)


def quote(text: str) -> str:
    """The text in quotes, as the program's parser reads it; braces, which mark sizes, are escaped too."""
    def escaped(byte: int) -> str:
        character = chr(byte)
        if character in '"\\':
            return "\\" + character
        if character in "\n\t":
            return "\\n" if character == "\n" else "\\t"
        return character if 0x20 <= byte < 0x7F and character not in "{}" else f"\\x{byte:02x}"

    return '"' + "".join(map(escaped, text.encode())) + '"'


def value_name(name: str) -> str:
    """An input's name in the text; quoted where it is not plain, or looks like a result's number."""
    return "%" + (name if PLAIN_NAME.fullmatch(name) and not name.isdigit() else quote(name))


def graph_text(joint: Joint, marks: Mapping[Node, Marks], inputs: Sequence[tuple[str, Node]], outputs: Sequence[Node], sizes: Sizes,
               growth: Growth | None = None) -> str:
    """The text of the graph from `inputs`, named, to `outputs`. A number that is another one for twice as many samples, as far as `growth`
    says, is written with it: {6.0|12.0}. Throws PenstockError naming the op where a value has no form in the text."""
    return _Writer(joint, marks, sizes, growth).graph(inputs, outputs)


def _kind(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1


class _Writer:
    """Appends a line for each op."""

    def __init__(self, joint: Joint, marks: Mapping[Node, Marks], sizes: Sizes, growth: Growth | None) -> None:
        self.joint, self.marks, self.sizes, self.growth = joint, marks, sizes, growth
        self.lines: list[str] = []
        self.results: dict[Node, list[str | None]] = {}  # the text names of each op's tensors
        self.next = 0

    def graph(self, inputs: Sequence[tuple[str, Node]], outputs: Sequence[Node]) -> str:
        self.results |= {node: [value_name(name)] for name, node in inputs}
        given = ", ".join(f"{value_name(name)}: {self.type_text(node, node.meta['val'])}" for name, node in inputs)
        tangent = self.joint.tangent
        for node in self.joint.computed:
            if tangent and is_backward(node):
                one = self.constant(node, 1.0, tangent.meta["val"].dtype, {"phase": quote("backward")})
                self.results[tangent], tangent = [one], None
            try:
                self.op(node)
            except UnknownSize as unknown:
                raise refusal(node, str(unknown), SIZES) from None
        returned = [self.joint.value(node) for node in outputs]
        kinds = ", ".join(self.type_text(node, node.meta["val"]) for node in returned)
        body = "".join(line + "\n" for line in self.lines)
        names = ", ".join(map(self.name_of, returned))
        return f"penstock graph 1\ngraph @joint({given}) -> ({kinds}) {{\n{body}  return {names}\n}}\n"

    def name_of(self, node: Node) -> str:
        node = self.joint.value(node)
        return self.results[node.args[0]][node.args[1]] if node.target is operator.getitem else self.results[node][0]

    def fresh(self) -> str:
        self.next += 1
        return f"%{self.next - 1}"

    def type_text(self, node: Node, tensor: torch.Tensor) -> str:
        if tensor.dtype not in DTYPES:
            raise refusal(node, f"it gives a tensor of {tensor.dtype}", "Penstock has " + " ".join(DTYPES.values()))
        return f"{DTYPES[tensor.dtype]}[{','.join(map(self.sizes.text, tensor.shape))}]"

    def line(self, results: Iterable[tuple[str, str]], name: str, operands: Iterable[str], attributes: Mapping[str, str]) -> None:
        left = ", ".join(f"{result}: {kind}" for result, kind in results)
        inner = ", ".join(f"{key}={value}" for key, value in attributes.items())
        self.lines.append(f"  {left} = {name}({', '.join(operands)})" + (f" {{{inner}}}" if inner else ""))

    def marks_text(self, node: Node) -> dict[str, str]:
        marks = self.marks[node]
        phase = {"phase": quote("backward")} if marks.backward else {}
        origin = {"origin": quote(marks.origin)} if marks.origin else {}
        return {**phase, **origin, "sequence": str(marks.sequence)}

    def op(self, node: Node) -> None:
        operands, attributes = self.arguments(node)
        results = [tensor if tensor is None else (self.fresh(), self.type_text(node, tensor)) for tensor in tensors_of(node)]
        self.results[node] = [result and result[0] for result in results]
        self.line([r for r in results if r], op_name(node), operands, {**dict(sorted(attributes.items())), **self.marks_text(node)})

    def arguments(self, node: Node) -> tuple[list[str], dict[str, str]]:
        """Operands and attributes by the op's schema: tensors in order, lists of them with their lengths, the places of those absent."""
        operands, attributes, lists, none, place = [], {}, [], [], 0
        for i, argument in enumerate(node.target._schema.arguments):
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            kind = str(argument.type)
            if kind in ("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]"):
                values = value if kind.startswith("List") else [value]
                lists += [len(values)] if kind.startswith("List") else []
                none += [place + j for j, v in enumerate(values) if v is None]
                operands += [self.operand(node, argument.name, v) for v in values if v is not None]
                place += len(values)
            elif value is not None and argument.name not in SKIPPED_ARGUMENTS:
                text = self.attribute_text(node, argument.name, value)
                attributes[argument.name] = self.growing(node, argument.name, value, text) if kind in NUMBERS else text
        for name, places in (("lists", lists), ("none", none)):
            if places:
                attributes[name] = self.attribute_text(node, name, places)
        return operands, attributes

    def operand(self, node: Node, name: str, value: Any) -> str:
        if isinstance(value, Node) and isinstance(value.meta["val"], torch.Tensor):
            return self.name_of(value)
        return self.constant(node, value, self.dtype_of_number(node, value), self.marks_text(node), name)

    def growing(self, node: Node, name: str, value: Any, text: str) -> str:
        """The text of a number and, where it depends on the samples, that of the number for twice as many."""
        if self.growth is None or not isinstance(value, (int, float)) or isinstance(value, bool) or is_backward(node):
            return text
        twice = self.growth.twice(node, name, float(value))
        if twice == value or math.isnan(value):
            return text
        return f"{{{text}|{int(twice) if isinstance(value, int) and twice.is_integer() else repr(twice)}}}"

    def dtype_of_number(self, node: Node, value: Any) -> torch.dtype:
        """A number among tensors changes the dtype of the result only where its kind is above the tensors': then the result says which."""
        operand = next(n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor))
        wanted = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
        others = (operand.dtype, tensors_of(node)[0].dtype, torch.int64, torch.get_default_dtype())
        dtype = next(dtype for dtype in others if _kind(dtype) >= wanted)
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def constant(self, node: Node, value: Any, dtype: torch.dtype, marks: Mapping[str, str], name: str = "") -> str:
        if isinstance(value, int) and int(float(value)) != value:
            raise refusal(node, f"the number {value} is too large")
        result = self.fresh()
        number = self.sizes.text(value.meta["val"]) + ".0" if isinstance(value, Node) else repr(float(value))
        number = self.growing(node, name, value, number) if name else number
        self.line([(result, f"{DTYPES[dtype]}[]")], "full", [], {"dtype": DTYPES[dtype], "fill_value": number, "size": "[]", **marks})
        return result

    def attribute_text(self, node: Node, name: str, value: Any) -> str:
        if isinstance(value, Node):
            value = value.meta["val"]
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, torch.SymInt)):
            return self.sizes.text(value)
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, str):
            return quote(value)
        if isinstance(value, torch.dtype) and value in DTYPES:
            return DTYPES[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(str(int(v)) if isinstance(v, bool) else self.attribute_text(node, name, v) for v in value) + "]"
        raise refusal(node, f"its argument {name} is {value}")
