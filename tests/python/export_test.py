# SPDX-License-Identifier: Apache-2.0
"""An exported module computes what PyTorch computes: losses, gradients, buffers, for one size and for several.

usage: export_test.py
"""

import collections
import contextlib
import dataclasses
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn as nn
import zoo
from evaluate import Graph, data_of, difference, run_autograd, run_exported, sampled, with_sizes, worst
from models import MODELS, Two, make
from torch.nn import functional as F

import penstock

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
IN_F32 = ("Autocast", "TiedText", "Numbers")
ONLY_IN_F32 = ("Autocast",)  # what is computed in bf16 is another thing in f64


def exported_and_oracle(module, args=(), kwargs=None, call=None, **options):
    """The results of the graph's text, and PyTorch's."""
    kwargs = kwargs or {}
    exported = penstock.export(module, args, kwargs, **options)
    theirs = run_autograd(module, call or (lambda copy: copy(*args, **kwargs)))
    return exported, run_exported(exported, data_of(module, args, kwargs, options.get("target"))), theirs


class AgainstAutograd(unittest.TestCase):
    def check(self, name, dtype):
        module, args = make(name, dtype)
        exported, ours, theirs = exported_and_oracle(module, args)
        self.assertLess(worst(ours, theirs), TOLERANCE[dtype])
        for buffer, value in theirs["buffer"].items():
            self.assertLess(difference(ours["buffer"].get(buffer, exported.state[buffer]), value), TOLERANCE[dtype], buffer)

    def test_every_model(self):
        for name in sampled(MODELS, len(MODELS) // 2):
            for dtype, names in ((torch.float64, MODELS.keys() - set(ONLY_IN_F32)), (torch.float32, IN_F32)):
                if name in names:
                    with self.subTest(name, dtype=dtype):
                        self.check(name, dtype)

    def test_other_sizes(self):
        """One export is right for all sizes that it says it fits."""
        for name in sampled(("TiedText", "Indexing", "Counted", "Attention"), 2):
            module, args = make(name, torch.float64)
            exported = penstock.export(module, args, dynamic=True)
            for sizes in ({"b": 3, "n": 5}, {"b": 7, "n": 8}, {"b": 4, "n": 3}):
                with self.subTest(name, **sizes):
                    self.check_sizes(name, exported, sizes)

    def check_sizes(self, name, exported, sizes):
        module, args = make(name, torch.float64, sizes)
        symbols = {symbol: dict(zip(data_of(module, args), args))[s["name"].rsplit(".", 1)[0]].shape[int(s["name"].rsplit(".", 1)[1])]
                   for symbol, s in exported.header["symbols"].items()}
        self.assertTrue(exported.fits(symbols))
        self.assertEqual(exported.graph(symbols), with_sizes(exported.text, symbols))
        ours = run_exported(exported, data_of(module, args), symbols)
        self.assertLess(worst(ours, run_autograd(module, lambda copy: copy(*args))), 1e-12)

    def test_many_images(self):
        """PyTorch takes another convolution for 16 images and more; the graph is for any number."""
        module, args = make("Norms", torch.float64)
        exported = penstock.export(module, args, dynamic={"images": (0,)})
        self.assertEqual(exported.header["symbols"]["s0"]["max"], 2**53)
        args = (torch.randn(20, *args[0].shape[1:], dtype=torch.float64),)
        ours = run_exported(exported, data_of(module, args), {"s0": 20})
        self.assertLess(worst(ours, run_autograd(module, lambda copy: copy(*args))), 1e-12)

    def test_dropout(self):
        """With the same random numbers in the same order; the backward takes the forward's mask."""
        class Dropped(Two):
            def forward(self, x):
                return self.second(F.dropout(self.first(x), 0.4) * torch.bernoulli(torch.full_like(x, 0.5))).pow(2).mean()

        torch.manual_seed(0)
        module, x = Dropped().double(), torch.randn(3, 50, 4, dtype=torch.float64)
        exported = penstock.export(module, (x,))
        graph = Graph(exported.text)
        self.assertEqual(sum("aten::native_dropout(" in line for line in graph.lines), 1)
        torch.manual_seed(5)
        ours = run_exported(exported, {"x": x})
        with torch.random.fork_rng():
            torch.manual_seed(5)
            mask = torch.native_dropout(torch.ones_like(x), 0.4, True)[0] * torch.bernoulli(torch.full_like(x, 0.5))
        theirs = run_autograd(module, lambda copy: copy.second(copy.first(x) * mask).pow(2).mean())
        self.assertLess(worst(ours, theirs), 1e-12)

    def test_ambient_autocast(self):
        module, args = make("Frozen", torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            exported, ours, theirs = exported_and_oracle(module, args)
        self.assertIn("bf16[", exported.text)
        self.assertLess(worst(ours, theirs), 1e-6)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    names: str = "x"


class Losses(unittest.TestCase):
    """Which of a module's results is the loss."""

    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(2, 4)

    def module(self, result):
        class Model(Two):
            def forward(self, x):
                return result(self.first(x), self.second(x))

        return Model()

    def check(self, result, loss, notes=()):
        module = self.module(result)
        exported, ours, theirs = exported_and_oracle(module, (self.x,), call=lambda copy: loss(copy.first(self.x), copy.second(self.x)))
        self.assertLess(worst(ours, theirs), 1e-5)
        self.assertEqual(exported.notes, list(notes))
        return ours

    def test_where_it_may_be(self):
        mean = lambda a, b: (a * b).mean()  # noqa: E731
        Named = collections.namedtuple("Named", "logits loss")
        self.check(mean, mean)
        self.check(lambda a, b: mean(a, b)[None], mean)
        self.assertEqual(self.check(lambda a, b: {"logits": a, "loss": mean(a, b)}, mean)["output"].keys(), {"logits"})
        self.check(lambda a, b: Output(mean(a, b), a), mean)
        self.check(lambda a, b: Named(a, mean(a, b)), mean)
        self.assertEqual(self.check(lambda a, b: (mean(a, b), a, b.sum()), mean)["output"].keys(), {"output.1", "output.2"})

    def test_several_are_added(self):
        total = lambda a, b: a.mean() + b.pow(2).mean()  # noqa: E731
        self.check(lambda a, b: {"a": a.mean(), "b": b.pow(2).mean(), "accuracy": (a > 0).float().mean()}, total, ["the loss is the sum of a, b"])
        self.check(lambda a, b: [a.mean(), b.pow(2).mean()], total, ["the loss is the sum of output.0, output.1"])

    def test_a_function_of_output_and_target(self):
        module, target = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.tensor([1, 2])
        exported, ours, theirs = exported_and_oracle(module, (self.x,), loss=nn.CrossEntropyLoss(), target=target,
                                                     call=lambda copy: F.cross_entropy(copy(self.x), target))
        self.assertLess(worst(ours, theirs), 1e-6)
        self.assertEqual([i["name"] for i in exported.header["inputs"]], ["input", "target", "0.weight", "0.bias", "2.weight", "2.bias"])
        exported, ours, theirs = exported_and_oracle(module, (self.x,), loss=lambda y: y.pow(2).sum(), call=lambda copy: copy(self.x).pow(2).sum())
        self.assertLess(worst(ours, theirs), 1e-6)

    def test_a_loss_with_parameters(self):
        class Weighted(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(2.0))

            def forward(self, output, target):
                return self.scale * F.mse_loss(output, target["y"])

        exported = penstock.export(nn.Linear(4, 4), (self.x,), loss=Weighted(), target={"y": torch.zeros(2, 4)})
        self.assertEqual([i["name"] for i in exported.header["inputs"]], ["input", "target.y", "weight", "bias", "loss.scale"])


class Header(unittest.TestCase):
    def test_one_tensor_for_two_arguments(self):
        """The example may give the same tensor twice; other calls need not."""
        class Model(Two):
            def forward(self, x, y):
                return F.mse_loss(self.second(self.first(x)), y)

        torch.manual_seed(0)
        module, x = Model(), torch.randn(2, 4)
        exported, other = penstock.export(module, (x, x)), (torch.randn(2, 4), torch.randn(2, 4))
        ours = run_exported(exported, dict(zip("xy", other)))
        self.assertLess(worst(ours, run_autograd(module, lambda copy: copy(*other))), 1e-6)

    def test_of_a_module_with_everything(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.head, self.norm = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.BatchNorm1d(4)
                self.head.weight = self.embed.weight
                self.frozen, self.unread = nn.Linear(4, 4).requires_grad_(False), nn.Linear(2, 2)

            def forward(self, batch, *, num_items_in_batch, flag=True):
                x = self.frozen(self.norm(self.embed(batch["text"][0]).transpose(1, 2)).transpose(1, 2)) * torch.tensor([1.0, 2.0, 3.0, 4.0])
                logits = self.head(x)
                return {"loss": F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / num_items_in_batch, "logits": logits}

        batch = {"text": [torch.ones(2, 5, dtype=torch.long)], "labels": torch.ones(2, 5, dtype=torch.long)}
        exported = penstock.export(Model(), (batch,), {"num_items_in_batch": 10}, dynamic={"batch.text.0": {1: (2, 512)}, "batch.labels": (1,)})
        norm = [{"name": f"norm.{name}", "role": "buffer"} for name in ("running_mean", "running_var", "num_batches_tracked")]
        self.assertEqual(exported.header, {
            "penstock": "exported 1",
            "torch": torch.__version__.split("+")[0],
            "model": "Model",
            "symbols": {"s0": {"name": "batch.text.0.1", "example": 5, "min": 2, "max": 512}},
            "conditions": [],
            "samples": 2,
            "growth": True, "loss": "sum",
            "inputs": [
                {"name": "batch.text.0", "role": "split"}, {"name": "batch.labels", "role": "split"}, {"name": "num_items_in_batch", "role": "whole"},
                {"name": "embed.weight", "role": "parameter", "trained": True, "aliases": ["head.weight"]},
                {"name": "norm.weight", "role": "parameter", "trained": True}, {"name": "norm.bias", "role": "parameter", "trained": True},
                {"name": "frozen.weight", "role": "parameter", "trained": False}, {"name": "frozen.bias", "role": "parameter", "trained": False},
                {"name": "constant.0", "role": "buffer"}, *norm],
            "outputs": [{"role": "loss"}, *({"role": "buffer", "name": n["name"]} for n in norm), {"role": "output", "name": "logits"},
                        *({"role": "gradient", "name": name} for name in ("embed.weight", "norm.weight", "norm.bias"))],
            "unread": [{"name": "unread.weight"}, {"name": "unread.bias"}],
            "passed": [],
        })
        self.assertEqual(exported.notes, [f"the loss does not depend on unread.{name}: it gets no gradient, as in PyTorch" for name in ("weight", "bias")])
        self.assertEqual(exported.state["constant.0"].tolist(), [1, 2, 3, 4])

    def test_a_count_that_is_not_read(self):
        """A module that takes any argument and forgets it still has a mean."""
        class Model(Two):
            def forward(self, x, **others):
                return self.second(self.first(x)).mean()

        exported = penstock.export(Model(), (torch.randn(2, 4),), {"num_items_in_batch": 7})
        self.assertEqual((exported.header["loss"], exported.notes), ("mean", ["the module does not read its argument num_items_in_batch"]))
        self.assertEqual(penstock.export(Model(), (torch.randn(2, 4),), reduction="sum").header["loss"], "sum")

    def test_sizes(self):
        class Model(Two):
            def forward(self, x, y):
                return self.first(x[:, : x.shape[1] // 2]).mean() + self.second(torch.cat([x, y], 1)).mean()

        exported = penstock.export(Model(), (torch.randn(3, 6, 4), torch.randn(3, 2, 4)), dynamic=True)
        self.assertEqual([(s["name"], s["example"], s["min"]) for s in exported.header["symbols"].values()], [("x.0", 3, 2), ("x.1", 6, 4), ("y.1", 2, 2)])
        self.assertEqual(exported.header["samples"], "s0")
        self.assertIn("f32[{s0},{s1 + s2},4]", exported.text)
        self.assertIn("end={s1//2}", exported.text)

    def test_conditions(self):
        """Where a module asks for its sizes, the graph is for those with the same answers."""
        class Model(Two):
            def forward(self, x):
                y = self.first(x).mean()
                y = y * 2 if x.shape[1] % 3 == 0 and x.shape[0] < x.shape[1] else y
                return y * 3 if x.shape[1] > 4 else y

        exported = penstock.export(Model(), (torch.randn(2, 6, 4),), dynamic=True)
        self.assertEqual(exported.header["conditions"], [["s1%3", "==", "0"], ["s0", "<", "s1"]])
        self.assertEqual([exported.fits({"s0": a, "s1": b}) for a, b in ((2, 6), (9, 12), (2, 7), (9, 6), (2, 3))], [True, True, False, False, False])
        with self.assertRaises(penstock.PenstockError) as raised:
            exported.graph({"s0": 2, "s1": 7})
        self.assertEqual(str(raised.exception).splitlines()[0], "the exported graph is not for sizes s0 = 2, s1 = 7")

    def test_sizes_that_no_expression_says_stay_fixed(self):
        class Model(Two):
            def forward(self, x):
                return self.second(self.first(x)).sum() / x.shape[1] ** 0.5

        exported = penstock.export(Model(), (torch.randn(2, 6, 4),), dynamic=True)
        self.assertEqual((exported.header["symbols"], exported.header["samples"]), ({}, 2))
        self.assertEqual(exported.notes, ["all sizes are fixed: aten::div.Tensor cannot be exported: the size FloatPow(ToFloat(s1), 0.5) cannot be "
                                          "written with + - * // % max min"])

    def test_evaluation_mode(self):
        module, args = make("Norms", torch.float32)
        exported = penstock.export(module.eval(), args)
        self.assertEqual(exported.notes, ["the module is in evaluation mode: without dropout, and with stored statistics; module.train() changes it"])
        self.assertNotIn("buffer", [o["role"] for o in exported.header["outputs"]])


class LazyHelper:
    calls = 0


class SetsUpAtItsFirstCall(Two):
    """Changes all that a first call can change: hooks, modules, buffers, attributes of its own, of what it holds and of classes, functions."""

    shared, ready = (), False

    def __init__(self):
        super().__init__()
        self.helper, self.cache, self.seen = LazyHelper(), {"lists": [[1]]}, []

    def forward(self, x):
        if not self.ready:
            self.ready, type(self).shared = True, (1,)
            self.cache["lists"][0].append(2)
            self.helper.parts, LazyHelper.calls = {"n": 2}, 1
            self.first.register_forward_hook(lambda module, args, output: 2 * output)
            self.second.forward = types.MethodType(lambda layer, x: F.linear(x, layer.weight, layer.bias), self.second)
            self.cache["factor"], self.first.added = 3, nn.Identity()
            self.seen.append(self.training)
            self.first.training = False
        return (self.second(self.first(x)) * self.cache["factor"]).square().sum() / (x.shape[0] * math.sqrt(x.shape[1]))


def kept_by(value, seen=None):
    """All that a module holds, as text, by identity where it is neither a container nor an object with attributes."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return f"again {seen[id(value)]}"
    if isinstance(value, (dict, list, set)) or (hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, types.FunctionType, type))):
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return {key: kept_by(each, seen) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [kept_by(each, seen) for each in value]
    return kept_by(vars(value), seen) if id(value) in seen else id(value)


class Twice(unittest.TestCase):
    """A trace leaves the module as it was, so that the next one finds what the first one found."""

    def check(self, module, args=(), kwargs=None, classes=()):
        before = kept_by(module), [dict(vars(cls)) for cls in classes]
        traces = [penstock.export(module, args, kwargs, dynamic=True) for _ in range(2)]
        self.assertEqual((kept_by(module), [dict(vars(cls)) for cls in classes]), before)
        self.assertEqual(traces[0].text, traces[1].text)
        return traces[0]

    def test_what_is_set_up_at_the_first_call(self):
        module = SetsUpAtItsFirstCall().double()
        exported = self.check(module, (torch.randn(4, 3, 4).double(),), classes=(SetsUpAtItsFirstCall, LazyHelper))
        self.assertRegex(exported.notes[0], "all sizes are fixed")  # so it was traced with symbols, and then without
        x = torch.randn(4, 3, 4).double()
        theirs = run_autograd(module, lambda copy: copy(x))
        self.assertLess(worst(run_exported(exported, {"x": x}), theirs), 1e-12)

    def test_where_the_trace_fails(self):
        class Fails(SetsUpAtItsFirstCall):
            def forward(self, x):
                return super().forward(x) if (x.sum() > 0).item() and super().forward(x) is None else super().forward(x)

        module = Fails()
        before = kept_by(module)
        with self.assertRaises(penstock.PenstockError):
            penstock.export(module, (torch.randn(4, 3, 4),))
        self.assertEqual(kept_by(module), before)

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_hooks_of_hugging_face(self):
        zoo.stub_torchvision()
        import transformers

        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**zoo.sizes(num_key_value_heads=2))).double()
        kwargs = {"input_ids": zoo.tokens(4, 6), "output_hidden_states": True, "use_cache": False}

        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = llama

            def forward(self, **kwargs):
                hidden = self.model(**kwargs).hidden_states[2]
                return hidden.square().sum() / (hidden.shape[0] * math.sqrt(hidden.shape[1]))
        module = Loss()
        exported = self.check(module, (), kwargs)
        self.assertEqual(len(llama(**kwargs).hidden_states), 3)
        theirs = run_autograd(module, lambda copy: copy(**kwargs))
        self.assertLess(worst(run_exported(exported, {"kwargs.input_ids": kwargs["input_ids"], **kwargs}), theirs), 1e-6)


class Text(unittest.TestCase):
    def test_of_a_small_module(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 2)

            def forward(self, x):
                return (2 * self.layer(x)).tanh().sum()

        exported = penstock.export(Model(), (torch.randn(4, 3),))
        self.assertEqual(exported.text, """penstock graph 1
graph @joint(%x: f32[4,3], %layer.weight: f32[2,3], %layer.bias: f32[2]) -> (f32[], f32[2,3], f32[2]) {
  %0: f32[3,2] = aten::t(%layer.weight) {origin="layer", sequence=0}
  %1: f32[4,2] = aten::addmm(%layer.bias, %x, %0) {alpha=1, beta=1, origin="layer", sequence=1}
  %2: f32[] = full() {dtype=f32, fill_value=2.0, size=[], sequence=2}
  %3: f32[4,2] = aten::mul.Tensor(%1, %2) {sequence=2}
  %4: f32[4,2] = aten::tanh(%3) {sequence=3}
  %5: f32[] = aten::sum(%4) {sequence=4}
  %6: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %7: f32[4,2] = aten::expand(%6) {implicit=false, size=[4, 2], phase="backward", sequence=4}
  %8: f32[4,2] = aten::tanh_backward(%7, %4) {phase="backward", sequence=3}
  %9: f32[] = full() {dtype=f32, fill_value=2.0, size=[], phase="backward", sequence=2}
  %10: f32[4,2] = aten::mul.Tensor(%8, %9) {phase="backward", sequence=2}
  %11: f32[2,4] = aten::t(%10) {phase="backward", origin="layer", sequence=1}
  %12: f32[2,3] = aten::mm(%11, %x) {phase="backward", origin="layer", sequence=1}
  %13: f32[3,2] = aten::t(%12) {phase="backward", origin="layer", sequence=1}
  %14: f32[1,2] = aten::sum.dim_IntList(%10) {dim=[0], keepdim=true, phase="backward", origin="layer", sequence=1}
  %15: f32[2] = aten::view(%14) {size=[2], phase="backward", origin="layer", sequence=1}
  %16: f32[2,3] = aten::t(%13) {phase="backward", origin="layer", sequence=0}
  return %5, %16, %15
}
""")

    def test_marks(self):
        """A forward op's sequence is its own; backward ops have that of a forward op of the same module."""
        module, args = make("Nested", torch.float32)
        forward, backward = {}, []
        for line in Graph(penstock.export(module, args).text).lines:
            marks = dict(part.split("=", 1) for part in line[line.index("{") + 1:-1].split(", ") if "=" in part)
            if "phase" in marks:
                backward.append(marks)
            elif " full()" not in line:
                self.assertNotIn(marks["sequence"], forward)
                forward[marks["sequence"]] = marks.get("origin")
        self.assertEqual({o for o in forward.values() if o}, {'"blocks.0.inner"', '"blocks.0.out"', '"blocks.1.inner"', '"blocks.1.out"', '"shared"', '"recurrent"'})
        for marks in backward[1:]:
            self.assertEqual(marks.get("origin"), forward[marks["sequence"]])

    def test_names(self):
        """An argument that is named as a parameter, and names that are not plain."""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.odd = nn.Parameter(torch.ones(4)), nn.ParameterDict({"a b": torch.ones(4), "{s0}": torch.ones(4)})

            def forward(self, weight):
                return (weight * self.weight * self.odd["a b"] * self.odd["{s0}"]).sum()

        x = torch.randn(2, 4)
        exported, ours, theirs = exported_and_oracle(Model(), (x,))
        self.assertIn(r'(%weight: f32[2,4], %weight.1: f32[4], %"odd.a b": f32[4], %"odd.\x7bs0\x7d": f32[4])', exported.text)
        self.assertEqual(exported.header["inputs"][1]["name"], "weight")

    def test_the_same_in_two_processes(self):
        """The order of sets, and what was traced before, do not matter."""
        script = ("import sys, torch; from models import make; import evaluate, penstock\n"
                  "for name in sys.argv[1:]:\n"
                  "    module, args = make(name, torch.float32)\n"
                  "    exported = penstock.export(module, args, dynamic=True)\n"
                  "    print(exported.header, exported.text, list(exported.state))\n")
        names = ["Norms", "AssignedBuffer"]
        with contextlib.redirect_stdout(io.StringIO()) as here, mock.patch("sys.argv", ["", *names]):
            exec(script, {})
        there = subprocess.run([sys.executable, "-c", script, *names[::-1]], cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
                               env={**os.environ, "PYTHONHASHSEED": "2"}).stdout
        self.assertEqual(sorted(here.getvalue().splitlines()), sorted(there.splitlines()))


class Meta(unittest.TestCase):
    def test_a_module_without_values(self):
        """It gives the text of the module with values; it is left as it was."""
        for name in sampled(("TiedText", "Norms", "AssignedBuffer", "Constants"), 2):
            with self.subTest(name):
                module, args = make(name, torch.float32)
                with torch.device("meta"):
                    empty = MODELS[name][0]()
                exported, full = penstock.export(empty, args), penstock.export(module, args)
                self.assertEqual((exported.text, exported.header), (full.text, full.header))
                self.assertTrue(all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers())))
                self.assertEqual({n: t.is_meta for n, t in exported.state.items()}, {n: not n.startswith("constant") for n in full.state})

    def test_a_module_is_left_as_it_was(self):
        for name in sampled(("AssignedBuffer", "RemembersForItsUser", "Norms", "Frozen"), 2):
            with self.subTest(name):
                module, args = make(name, torch.float32)
                before = {key: value.clone() for key, value in module.state_dict().items()}
                names = set(vars(module))
                penstock.export(module, args)
                self.assertEqual(set(vars(module)) - names, set())
                self.assertTrue(all(torch.equal(before[key], value) for key, value in module.state_dict().items()))
                self.assertTrue(all(parameter.grad is None for parameter in module.parameters()))


class Saved(unittest.TestCase):
    def test_file(self):
        module, args = make("Norms", torch.bfloat16)
        exported = penstock.export(module, args, dynamic={"images": (0,)})
        with tempfile.TemporaryDirectory() as folder:
            exported.save(Path(folder) / "model.pt2")
            self.assertEqual(os.listdir(folder), ["model.pt2"])
            loaded = penstock.load_exported(Path(folder) / "model.pt2")
            self.assertEqual((loaded.header, loaded.text, loaded.notes), (exported.header, exported.text, exported.notes))
            self.assertEqual(list(loaded.state), list(exported.state))
            for name, tensor in exported.state.items():
                self.assertEqual(loaded.state[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(loaded.state[name], tensor), name)

    def test_without_values(self):
        with torch.device("meta"):
            module = nn.Linear(4, 4)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt2"
            penstock.export(module, (torch.zeros(2, 4),), loss=torch.sum).save(path)
            self.assertLess(path.stat().st_size, 4000)
            state = penstock.load_exported(path).state
        self.assertEqual({name: (tensor.shape, tensor.is_meta) for name, tensor in state.items()}, {"weight": ((4, 4), True), "bias": ((4,), True)})

    def test_files_of_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "other"
            path.write_bytes(b"not a model")
            with self.assertRaisesRegex(penstock.PenstockError, "other: this is no safetensors file"):
                penstock.load_exported(path)
            text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
            with self.assertRaisesRegex(penstock.PenstockError, r"other: this is no exported module\n  hint: penstock.export\(...\).save\(path\) writes one"):
                penstock.load_exported(path)
            text = json.dumps({"__metadata__": {"header": '{"penstock": "exported 9"}', "graph": ""}}).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text)
            with self.assertRaisesRegex(penstock.PenstockError, 'other: this is "exported 9"; this version reads "exported 1"'):
                penstock.load_exported(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
