# SPDX-License-Identifier: Apache-2.0
"""Runs a graph's text in Python, op by op through the dispatcher, and holds it against autograd. It shares no code with the package."""

import copy
import gc
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import torch

if importlib.util.find_spec("penstock") is None:  # the tree's, without the engine
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

os.environ.setdefault("PENSTOCK_CACHE", "off")  # the user's own exports are those of real work

from drawn import SOAK, drawn_seed, sampled  # noqa: E402, F401

import penstock.trace  # noqa: E402, F401

gc.freeze()  # what imports leave is not gone through again each time that an export makes the collector run

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32,
          "bool": torch.bool}
NAME = r'%(?:"(?:[^"\\]|\\.)*"|[\w.$:/-]*[\w.$/-])'
DEFINITION = re.compile(rf"({NAME}): (\w+)\[([\d,]*)\]")
LINE = re.compile(rf"  (.*?) = ([\w:.]+)\((.*?)\)(?: \{{(.*)\}})?$")
ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|f64\[\]|\[[^\]]*\]|[^,]+)')


def with_sizes(text, sizes):
    """The text with numbers in place of the expressions in braces, and of two numbers the first."""
    text = re.sub(r"\{([\w.+\-]+)\|[\w.+\-]+\}", r"\1", text)
    return re.sub(r"\{([\w +\-*/%(),]+)\}", lambda found: str(eval(found[1], {"max": max, "min": min}, dict(sizes))), text)


def attribute(text):
    if text.startswith('"'):
        return json.loads(text.replace("\\x", "\\u00"))
    if text in ("true", "false"):
        return text == "true"
    if text in DTYPES:
        return DTYPES[text]
    if text.startswith(("[", "f64[")):
        return [attribute(part) for part in text[text.index("[") + 1:-1].split(", ") if part]
    return float(text) if re.search(r"[.enf]", text) else int(text)


def definitions(text):
    return [(name, DTYPES[dtype], [int(d) for d in dims.split(",") if d]) for name, dtype, dims in DEFINITION.findall(text)]


class Graph:
    """`inputs` and `lines` as they stand in the text, every size a number."""

    def __init__(self, text):
        first, head, *lines, returned, close, end = text.split("\n")
        assert (first, close, end) == ("penstock graph 1", "}", ""), "not a graph's text"
        signature = re.fullmatch(r"graph @joint\((.*)\) -> \((.*)\) \{", head)
        self.inputs, self.kinds, self.lines = definitions(signature[1]), signature[2], lines
        self.returned = re.findall(NAME, returned)

    def run(self, tensors):
        """The outputs' tensors. Every tensor must have the type that the text says."""
        values = dict(zip((name for name, _, _ in self.inputs), tensors, strict=True))
        for name, dtype, shape in self.inputs:
            assert (values[name].dtype, list(values[name].shape)) == (dtype, shape), f"input {name}: {values[name].shape}, not {shape}"
        with torch.no_grad():
            for line in self.lines:
                left, op, operands, attributes = LINE.fullmatch(line).groups()
                given = run_op(op, [values[name] for name in re.findall(NAME, operands)], dict(ATTRIBUTE.findall(attributes or "")))
                for (name, dtype, shape), tensor in zip(definitions(left), given, strict=True):
                    assert (tensor.dtype, list(tensor.shape)) == (dtype, shape), f"{line}: gives {tensor.dtype}{list(tensor.shape)}"
                    values[name] = tensor.contiguous()
        return [values[name] for name in self.returned]


def run_op(name, operands, attributes):
    attributes = {key: attribute(text) for key, text in attributes.items()}
    for mark in ("stage", "phase", "origin", "sequence"):
        attributes.pop(mark, None)
    if name == "full":
        return [torch.full(attributes["size"], attributes["fill_value"], dtype=attributes["dtype"])]
    namespace, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    function = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    lists, none = iter(attributes.pop("lists", [])), set(attributes.pop("none", []))
    operands, place, arguments = iter(operands), 0, {}

    def tensor():
        nonlocal place
        place += 1
        return None if place - 1 in none else next(operands)

    for argument in function._schema.arguments:
        kind = str(argument.type)
        if "Tensor" in kind:
            arguments[argument.name] = [tensor() for _ in range(next(lists))] if "List" in kind else tensor()
        elif argument.name in attributes:
            value = attributes.pop(argument.name)
            arguments[argument.name] = [bool(v) for v in value] if "List[bool]" in kind else value
        elif not argument.has_default_value():
            arguments[argument.name] = None
    assert not attributes and next(operands, None) is None, f"{name} does not take all of {attributes}"
    result = function(**arguments)
    return [t for r in (result if isinstance(result, (list, tuple)) else [result]) if r is not None
            for t in (r if isinstance(r, (list, tuple)) else [r])]


def inputs_of(exported, data):
    """The graph's inputs in order: state by name, data (tensors by name) as given."""
    return [exported.state[i["name"]] if i["role"] in ("parameter", "buffer") else data[i["name"]] for i in exported.header["inputs"]]


def run_exported(exported, data, sizes=None, tensors=None):
    """Runs the text: {"loss": tensor, "gradient": {name: tensor}, "buffer": {...}, "output": {...}}."""
    results = Graph(with_sizes(exported.text, sizes or {})).run(tensors or inputs_of(exported, data))
    out = {"loss": None, "gradient": {}, "buffer": {}, "output": {}}
    for described, tensor in zip(exported.header["outputs"], results, strict=True):
        if described["role"] == "loss":
            out["loss"] = tensor
        else:
            out[described["role"]][described["name"]] = tensor
    return out


def difference(a, b):
    """Relative L2."""
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30)) if b.norm() > 0 else float(a.norm())


def run_autograd(module, call):
    """The same by PyTorch, of a copy of the module; `call` gives the loss of it."""
    module = copy.deepcopy(module)
    loss = call(module)
    loss.backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "gradient": gradients, "buffer": dict(module.named_buffers())}


def worst(ours, theirs):
    """The largest relative difference of the loss and the gradients; one that is next to nothing is held against the largest."""
    assert ours["gradient"].keys() == theirs["gradient"].keys(), ours["gradient"].keys() ^ theirs["gradient"].keys()
    floor = 1e-2 * max(g.double().norm() for g in theirs["gradient"].values())
    parts = [(ours["gradient"][n].double() - g.double()).norm() / max(g.double().norm(), floor) for n, g in theirs["gradient"].items()]
    return float(max([*parts, torch.tensor(difference(ours["loss"], theirs["loss"]))]))


def data_of(module, args=(), kwargs=None, target=None):
    """The tensors of a call by the names that the header gives them."""
    from penstock.arguments import named_arguments

    return {argument.name: argument.tensor for argument in named_arguments(module.forward, args, kwargs or {}, target, ()).tensors}
