"""Writes the joint forward-and-backward graph of a small PyTorch GPT as Penstock's graph text.

usage: export_joint.py FOLDER

FOLDER/graph.txt         the graph: data, then parameters, to the loss and the gradient of each parameter
FOLDER/tensors.safetensors
                         the inputs by name, and what PyTorch computes: "loss" and "grad:<parameter>"

Ops keep the dispatcher's names and run by them; their other arguments are attributes by the schema's names. An op's origin is
its module, its sequence PyTorch's seq_nr, which a backward op shares with its forward op. Stages follow from module names.
"""

import contextlib
import json
import struct
import sys
from pathlib import Path

import torch
import torch.fx.traceback
import torch.nn as nn
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
}
STAGES = {"wte": "0", "wpe": "0", "blocks.0": "0", "blocks.1": "1", "norm": "1", "head": "1"}
SKIPPED_ARGUMENTS = ("device", "layout", "pin_memory", "memory_format", "generator")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=17, width=16, heads=2, layers=2, length=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def joint_graph(model, arguments):
    captured = dynamo_graph_capture_for_export(model)(*arguments)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        return aot_export_joint_with_descriptors(stack, captured, arguments).graph_module


def type_text(value):
    return f"{DTYPES[value.dtype]}[{','.join(map(str, value.shape))}]"


def attribute_text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(str(int(v)) if isinstance(v, bool) else repr(v) for v in value) + "]"
    return repr(value)


def origin_of(node):
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    return paths[-1].split("].", 1)[-1] if paths and "]." in paths[-1] else ""


def is_backward(node):
    return node.meta.get("partitioner_tag") == "is_backward"


class Writer:
    """Appends one line per op; `names` maps nodes to their values' text names."""

    def __init__(self):
        self.lines, self.names, self.tuples, self.sequences = [], {}, {}, {}
        self.next = 0

    def fresh(self):
        self.next += 1
        return f"%{self.next - 1}"

    def line(self, results, name, operands, attributes):
        left = ", ".join(f"{result}: {kind}" for result, kind in results)
        inner = ", ".join(f"{key}={attribute_text(value)}" for key, value in attributes.items())
        self.lines.append(f"  {left} = {name}({', '.join(operands)}) {{{inner}}}")

    def constant(self, number, like, marks):
        result = self.fresh()
        attributes = {"dtype": like.dtype, "fill_value": float(number), "size": [], **marks}
        self.line([(result, f"{DTYPES[like.dtype]}[]")], "full", [], attributes)
        return result

    def sequence_of(self, node):
        """PyTorch numbers the sum of a value's gradients like the last forward op: it takes the first reader's number instead."""
        inputs = node.all_input_nodes
        sums = is_backward(node) and node.target is torch.ops.aten.add.Tensor and all(map(is_backward, inputs))
        return min(self.sequences[i] for i in inputs) if sums else node.meta["seq_nr"]

    def marks_of(self, node):
        self.sequences[node] = self.sequence_of(node)
        marks = {"sequence": self.sequences[node]}
        if is_backward(node):
            marks["phase"] = "backward"
        origin = origin_of(node)
        if origin:
            marks["origin"] = origin
        stage = [s for module, s in STAGES.items() if origin == module or origin.startswith(module + ".")]
        if stage and not is_backward(node):
            marks["stage"] = stage[0]
        return marks

    def arguments(self, node, marks):
        """Operands and attributes by the op's schema (see bind_by_name in src/torch/kernel.h)."""
        operands, attributes, lists, none, place = [], {}, [], [], 0
        values = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else [node.meta["val"]]
        for i, argument in enumerate(node.target._schema.arguments):
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            kind = str(argument.type)
            if kind in ("Tensor", "Optional[Tensor]"):
                if value is None:
                    none.append(place)
                else:
                    is_node = isinstance(value, torch.fx.Node)
                    operands.append(self.names[value] if is_node else self.constant(value, values[0], marks))
                place += 1
            elif kind in ("List[Tensor]", "List[Optional[Tensor]]"):
                lists.append(len(value))
                none += [place + j for j, v in enumerate(value) if v is None]
                operands += [self.names[v] for v in value if v is not None]
                place += len(value)
            elif value is not None and argument.name not in SKIPPED_ARGUMENTS:
                attributes[argument.name] = value
        if lists:
            attributes["lists"] = lists
        if none:
            attributes["none"] = none
        return operands, attributes

    def op(self, node):
        marks = self.marks_of(node)
        operands, attributes = self.arguments(node, marks)
        several = isinstance(node.meta["val"], (list, tuple))
        results = []
        for value in node.meta["val"] if several else [node.meta["val"]]:
            results.append(None if value is None else (self.fresh(), type_text(value)))
        if several:
            self.tuples[node] = [r and r[0] for r in results]
        else:
            self.names[node] = results[0][0]
        schema = node.target._schema
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        self.line([r for r in results if r], name, operands, {**attributes, **marks})

    def item(self, node):
        source, index = node.args
        self.names[node] = self.tuples[source][index]
        self.sequences[node] = self.sequences[source]


def graph_text(graph_module, parameter_names, data_names):
    writer, inputs = Writer(), []
    parameters, data = iter(parameter_names), iter(data_names)
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            described = type(node.meta["desc"]).__name__
            if described == "TangentAOTInput":
                writer.sequences[node] = node.meta["seq_nr"]
                writer.names[node] = writer.constant(1, node.meta["val"], {"phase": "backward"})
                continue
            name = next(parameters) if described == "ParamAOTInput" else next(data)
            writer.names[node] = "%" + name
            inputs.append((name not in data_names, f"%{name}: {type_text(node.meta['val'])}"))
        elif node.op == "call_function":
            writer.item(node) if node.target.__name__ == "getitem" else writer.op(node)
        elif node.op == "output":
            outputs = node.args[0]
    header = ", ".join(text for _, text in sorted(inputs, key=lambda entry: entry[0]))
    wanted = [output for output in outputs if output is not None]
    kinds = ", ".join(type_text(output.meta["val"]) for output in wanted)
    returned = ", ".join(writer.names[output] for output in wanted)
    body = "\n".join(writer.lines)
    return f"penstock graph 1\ngraph @joint({header}) -> ({kinds}) {{\n{body}\n  return {returned}\n}}\n"


def write_safetensors(path, tensors):
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        data = tensor.detach().contiguous().numpy().tobytes()
        dtype = DTYPES[tensor.dtype].upper()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT().double()
    tokens, targets = torch.randint(17, (2, 8)), torch.randint(17, (2, 8))
    names = [name for name, _ in model.named_parameters()]
    graph_module = joint_graph(model, (tokens, targets))
    (folder / "graph.txt").write_text(graph_text(graph_module, names, ["tokens", "targets"]))
    loss = model(tokens, targets)
    loss.backward()
    tensors = {"tokens": tokens, "targets": targets, "loss": loss}
    for name, parameter in model.named_parameters():
        tensors[name] = parameter
        tensors["grad:" + name] = parameter.grad
    write_safetensors(folder / "tensors.safetensors", tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
