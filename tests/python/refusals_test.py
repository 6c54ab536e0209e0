# SPDX-License-Identifier: Apache-2.0
"""Modules that cannot be exported right are refused, with the module, the op, the line of the user's file and a way out.

usage: refusals_test.py
"""

import copy
import inspect
import random
import tempfile
import types
import unittest

import evaluate  # noqa: F401  (it finds the package)
import numpy
import torch
import torch.nn as nn
from models import Two

import penstock


class Inner(nn.Module):
    """Puts a function of a layer and its input two modules deep."""

    def __init__(self, run, layer=None):
        super().__init__()
        self.layer, self.run = layer or nn.Linear(4, 4), run

    def forward(self, x):
        return self.run(self, x)


def outer(run, layer=None):
    return nn.Sequential(nn.Linear(4, 4), Inner(run, layer))


class Double(torch.autograd.Function):
    """Its backward is not its forward's derivative."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


@torch.library.custom_op("penstock_test::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


tripled.register_fake(torch.empty_like)
LIBRARY = torch.library.Library("penstock_test", "FRAGMENT")
LIBRARY.define("doubled(Tensor x) -> Tensor")
LIBRARY.impl("doubled", lambda x: 2 * x, "CPU")
LIBRARY.impl("doubled", torch.empty_like, "Meta")


class Refusals(unittest.TestCase):
    def refused(self, module, *args, **options):
        options.setdefault("loss", torch.sum)
        with self.assertRaises(penstock.PenstockError) as raised:
            penstock.export(module, args or (torch.randn(2, 4),), **options)
        return str(raised.exception)

    def check(self, run, what, hint, layer=None, module="1", line=None):
        """The whole message. The place is the line of `run` that has `line` in it; without, the one of Inner.forward, as for all ops."""
        lines, first = inspect.getsourcelines(run if line else Inner.forward)
        at = next(i for i, text in enumerate(lines) if (line or "self.run(") in text)
        place = f"{__file__}:{first + at}: {lines[at].strip()}"
        self.assertEqual(self.refused(outer(run, layer)), f"{what}\n  in module {module}\n  {place}\n  hint: {hint}")


class Kinds(Refusals):
    """Modules that are none to trace, and arguments of the trainer that are none of theirs."""

    def check_first_lines(self, module, what, hint, x=None):
        x = torch.randn(4, 4) if x is None else x
        for call in (lambda: penstock.export(module, (x,), loss=torch.sum), lambda: penstock.trainer(module, x, loss=torch.sum, microbatches=2)):
            with self.assertRaises(penstock.PenstockError) as raised:
                call()
            self.assertEqual(str(raised.exception), f"{what}\n  hint: {hint}")

    def test_modules(self):
        layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        torchscript = "was compiled by TorchScript, which cannot be traced again", "give the module that it was made of"
        self.check_first_lines(torch.jit.trace(layers, torch.randn(4, 4)), f"the module {torchscript[0]}", torchscript[1])
        self.check_first_lines(nn.Sequential(layers, torch.jit.script(nn.Linear(4, 4))), f'module "1" {torchscript[0]}', torchscript[1])
        lazy = "has no shape before the module has run once", "run the module on a batch first: module(batch)"
        self.check_first_lines(nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4)), f'"weight" of module "1", a LazyLinear, {lazy[0]}', lazy[1])
        self.check_first_lines(nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 4)), f'"running_mean" of module "0", a LazyBatchNorm1d, {lazy[0]}', lazy[1])
        self.check_first_lines(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)),
                               'module "1", a BatchNorm1d, has momentum=None: by how much it moves its statistics depends on how many batches it has seen',
                               "give it a momentum, such as 0.1, or put it in evaluation mode by .eval()")
        self.check_first_lines(nn.Sequential(nn.Linear(4, 4), nn.Embedding(4, 4, sparse=True)),
                               'module "1", of Embedding, has sparse=True: the gradient of its table is no dense tensor',
                               "give it sparse=False: its values are the same, and so are the updates of optimizers that take both")
        with tempfile.NamedTemporaryFile() as file:
            torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}.store", rank=0, world_size=1)
            try:
                self.check_first_lines(nn.parallel.DistributedDataParallel(layers), "the module is a DistributedDataParallel, which sends gradients to other processes itself",
                                       "give the module that it wraps, .module; data=, and processes started by torchrun, are Penstock's own")
            finally:
                torch.distributed.destroy_process_group()

    def test_settings(self):
        module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(4, 4)
        whole = ("actors", "chunks", "microbatches", "data", "threads")
        wrong = {**dict.fromkeys(whole, (2.5, 2.0, True, "2", -1, 0, [2])), "zero": (0.5, True, "1", -1, 4, 7), "seed": (1.5, "x", None), "options": ("x", [1], 3, {1: 2}, {"in_flight": "3"}, {"in_flight": None}, {"in_flight": 10**12}, {"frozen": ["x"]}), "recompute": (1, "yes", None),
                 "clip": (-1, True, "1", float("nan"), float("inf")), "deadline": (0, -1, "60", True), "schedule": (1, None), "split": ("1", [1], 3),
                 "whole": ("x", 3, [1]), "dynamic": (1, "yes", None), "weights": (3,), "loss": (3, "mse"),
                 "optimizer": (torch.optim.SGD, "sgd")}
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name, value=value), self.assertRaises(penstock.PenstockError) as raised:
                    penstock.trainer(module, x, **{"loss": torch.sum, "microbatches": 2, name: value})
                self.assertRegex(str(raised.exception), rf"^{name}=.* is not what {name} takes\n  hint: {name} is ")
        with self.assertRaisesRegex(penstock.PenstockError, "a list is no module"):
            penstock.trainer([module], x, loss=torch.sum)

    def test_buffers_that_micro_batches_cannot_share(self):
        """The refusal says what is updated where: the module, the line, the way out."""
        class Average(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("target", torch.zeros(4, 4))

            def forward(self, x):
                with torch.no_grad():
                    self.target.mul_(0.9).add_(self.first.weight, alpha=0.1)
                return self.second(x @ self.target)

        class Queue(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("kept", torch.zeros(8, 4))

            def forward(self, x):
                y = self.first(x)
                with torch.no_grad():
                    self.kept.copy_(torch.cat([y.detach(), self.kept[: -y.shape[0]]]))
                return self.second(y)
        out = ("or update it between steps, by step.parameter(name) or step.load_state_dict, and leave it as it is within one: "
               "where it is updated in training alone, .eval() of that part")
        spectral = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
        for module, what, *details in ((nn.Sequential(nn.Linear(4, 4), Average()), '"1.target" is updated, and read besides', "in module 1\n", "self.target.mul_(0.9)"),
                                       (Queue(), '"kept" is updated in a way', "in the Queue itself\n", "self.kept.copy_"),
                                       (spectral, '"0.parametrizations.weight.0._', "in module 0.parametrizations.weight.0\n"),
                                       (nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)), '"0.weight_u" is updated', "in module 0\n")):
            with self.subTest(what), self.assertRaises(penstock.PenstockError) as raised:
                penstock.trainer(module, torch.randn(4, 4), loss=torch.sum, microbatches=2)
            text = str(raised.exception)
            self.assertTrue(text.startswith(f"buffer {what}") and text.endswith(out), text)
            for detail in details:
                self.assertIn(detail, text)


class WaysOut(unittest.TestCase):
    """The refusal of buffers that one step reads of another names ways out, which work as PyTorch does."""

    def alike(self, module, batch, update, ours):
        """Three steps; `update(module, result)` is what PyTorch does behind each, `ours(step, module, batch)` the same of a trainer."""
        twin = copy.deepcopy(module)
        optimizer, step = torch.optim.SGD(twin.parameters(), lr=0.1), penstock.trainer(module, batch, microbatches=2, actors=1,
                                                                                       optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            result = twin(batch)
            result["loss"].backward()
            optimizer.step()
            torch.testing.assert_close(step(batch).item(), result["loss"].item(), rtol=1e-12, atol=1e-12)
            with torch.no_grad():
                update(twin, result)
                ours(step, module, batch)

    class Normalised(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm, self.last = norm(nn.Linear(4, 4)), nn.Linear(4, 4)

        def forward(self, x):
            return {"loss": self.last(self.norm(x)).square().mean()}

        def iterate(self, x):
            """A power iteration."""
            self.part().train()(x if self.part() is self.norm else self.norm.parametrizations.weight.original)
            self.part().eval()

        def part(self):
            return self.norm.parametrizations.weight[0] if hasattr(self.norm, "parametrizations") else self.norm

    def test_spectral_norms(self):
        def again(step, module, batch):
            module.load_state_dict(step.state_dict())
            module.iterate(batch)
            step.load_state_dict(module.state_dict())
        for norm in (nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm):
            module, x = self.Normalised(norm).double(), torch.randn(8, 4).double()
            module.part().eval()
            self.alike(module, x, lambda twin, _: twin.iterate(x), again)

    def test_averages_of_weights_and_queues(self):
        class Kept(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("average", torch.zeros(4, 4))
                self.register_buffer("queue", torch.randn(8, 4))

            def forward(self, x):
                keys = self.first(x)
                return {"loss": (self.second(keys) @ self.queue.T).square().mean() + (x @ self.average).mean(), "keys": keys}

        def update(average, weight, queue, keys):
            average.mul_(0.9).add_(weight, alpha=0.1)
            queue.copy_(torch.cat([keys, queue[:-4].clone()]))
        x = torch.randn(4, 4).double()
        self.alike(Kept().double(), x, lambda twin, _: update(twin.average, twin.first.weight, twin.queue, twin(x)["keys"]),
                   lambda step, _, batch: update(step.parameter("average"), step.parameter("first.weight"), step.parameter("queue"), step.evaluate(batch)["keys"]))

    def test_batch_norms(self):
        for way in (lambda norm: norm.eval(), lambda norm: setattr(norm, "momentum", 0.1)):
            module, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)).double(), torch.randn(8, 4).double()
            way(module[1])
            step = penstock.trainer(module, x, loss=lambda y: y.square().mean(), microbatches=1, actors=1)
            torch.testing.assert_close(step.gradients(x)[0].item(), module(x).square().mean().item(), rtol=1e-12, atol=1e-12)


class ControlFlow(Refusals):
    VALUES = "the module's control flow or sizes depend on the values of tensors, which differ from step to step"
    MASKS = "say it with ops on tensors, such as torch.where and masks, or make it an argument"
    SIZES = "sizes may depend on the sizes of arguments alone: use masks, or pass the number"

    def test_a_branch_on_values(self):
        def run(self, x):
            y = self.layer(x)
            if y.sum() > 0:
                y = 2 * y
            return y

        self.check(run, self.VALUES, self.MASKS, line="if y.sum")

    def test_an_assertion_on_values(self):
        def run(self, x):
            assert (x < 100).all()
            return self.layer(x)

        self.check(run, self.VALUES, self.MASKS, line="assert")

    def test_sizes_that_depend_on_values(self):
        self.check(lambda self, x: self.layer(x)[x > 0], "aten::index.Tensor cannot be exported: u0 is known only when the module runs", self.SIZES)
        self.check(lambda self, x: self.layer(x).flatten()[x.flatten().nonzero()],
                   "aten::nonzero cannot be exported: u0 is known only when the module runs", self.SIZES)

    def test_numbers_read_from_tensors(self):
        self.check(lambda self, x: self.layer(x) * x[0, 0].item(), "aten::mul.Tensor cannot be exported: zuf0 is known only when the module runs",
                   self.SIZES)


class Ops(Refusals):
    def test_complex_numbers(self):
        self.check(lambda self, x: torch.fft.rfft(self.layer(x)).abs(), "aten::_fft_r2c cannot be exported: it gives a tensor of torch.complex64",
                   "Penstock has f64 f32 bf16 f16 i64 i32 bool")

    def test_ops_of_python(self):
        reason = "cannot be exported: it is registered in Python, so that no other program can run it"
        hint = "register it in C++ (TORCH_LIBRARY), or write it with PyTorch's own ops"
        self.check(lambda self, x: self.layer(torch.ops.penstock_test.doubled(x)), f"penstock_test::doubled {reason}", hint)
        self.check(lambda self, x: tripled(self.layer(x)), f"penstock_test_tripled_default {reason}", hint, line="tripled(")

    def test_functions_with_a_backward_of_their_own(self):
        self.check(lambda self, x: Double.apply(self.layer(x)), "torch.autograd.Function Double cannot be exported: its backward would be ignored",
                   "write it with ops and detach(): a straight-through estimate is x + (f(x) - x).detach()", line="Double.apply")

    def test_dropout_of_recurrent_layers(self):
        for layer, op in ((nn.LSTM, "lstm"), (nn.GRU, "gru"), (nn.RNN, "rnn_tanh")):
            what = f"aten::{op}.input cannot be exported: its dropout is lost when the backward is made"
            hint = "give it dropout=0, and put nn.Dropout between modules of one layer each"
            self.check(lambda self, x: self.layer(x.unsqueeze(1))[0], what, hint, layer(4, 4, num_layers=2, dropout=0.1, batch_first=True), "1.layer")
            penstock.export(outer(lambda self, x: self.layer(x.unsqueeze(1))[0], layer(4, 4, num_layers=2, dropout=0.1, batch_first=True)).eval(), (torch.randn(2, 4),), loss=torch.sum)

    def test_graphs_inside_of_graphs(self):
        message = self.refused(outer(lambda self, x: torch.cond(x.sum() > 0, lambda y: self.layer(y), lambda y: -self.layer(y), (x,))))
        self.assertIn("the module cannot be traced: UncapturedHigherOrderOpError", message)

    def test_modules_that_do_not_run(self):
        def run(self, x):
            return self.layer(x[:, :3])

        with self.assertNoLogs("torch._subclasses.fake_tensor"):  # the stack of PyTorch's own calls
            self.refused(outer(run))
        self.check(run, "the module cannot be traced: RuntimeError: a and b must have same reduction dim, but got [2, 3] X [4, 4].",
                   "see that the module runs with these arguments; PyTorch's own error is the cause of this one", module="1.layer", line="x[:, :3]")


class Gradients(Refusals):
    """Things that autograd does and a joint graph would leave out."""

    def test_hooks_on_tensors(self):
        def run(self, x):
            y = self.layer(x)
            y.register_hook(lambda gradient: 2 * gradient)
            return y

        self.check(run, "Tensor.register_hook cannot be exported: what a hook does to gradients is not in the graph", "let the loss say it",
                   line="register_hook")

    def test_hooks_on_modules_and_parameters(self):
        hint = "\n  hint: remove the hook; what it does to gradients can be done in the loss or in the optimizer"
        module = outer(lambda self, x: self.layer(x))
        handle = module[1].layer.register_full_backward_hook(lambda *_: None)
        self.assertEqual(self.refused(module), 'module "1.layer" has a backward hook: what a hook does to gradients is not in the graph' + hint)
        handle.remove()
        module[0].weight.register_hook(lambda gradient: gradient)
        self.assertEqual(self.refused(module), 'parameter "0.weight" has a hook: what a hook does to gradients is not in the graph' + hint)

    def test_requires_grad_changed_while_it_runs(self):
        def run(self, x):
            self.layer.weight.requires_grad_(False)
            return self.layer(x)

        self.check(run, "Tensor.requires_grad_ cannot be exported: which parameters are trained is fixed before a step",
                   "freeze parameters before exporting, or use detach()", line="requires_grad_")

    def test_inference_mode(self):
        def run(self, x):
            with torch.inference_mode():
                return self.layer(x)

        self.assertIn("torch.inference_mode cannot be exported: the graph would have gradients where it has none\n  in module 1.layer\n",
                      self.refused(outer(run)))

    def test_nothing_to_train(self):
        self.assertEqual(self.refused(nn.Linear(4, 4).requires_grad_(False)),
                         "the module's loss has no gradient: it depends on no parameter that is trained\n"
                         "  hint: parameters are trained where requires_grad is True; the loss must not be detached")


class Steps(Refusals):
    """Things that one step leaves for the next."""

    def test_numbers_that_change(self):
        class Counter(Two):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return self.first(x) / self.calls

        self.assertEqual(self.refused(nn.Sequential(Counter())), "the module keeps its attribute calls from one step for the next\n"
                         "  in module 0 (Counter)\n  hint: make it a buffer, self.register_buffer(...), or hand it to the module as an argument")

    def test_numbers_in_objects(self):
        class Counter(Two):
            def __init__(self):
                super().__init__()
                self.state = types.SimpleNamespace(calls=0)

            def forward(self, x):
                self.state.calls += 1
                return self.first(x) / self.state.calls

        self.assertEqual(self.refused(Counter()).splitlines()[:2],
                         ["the module keeps its attribute calls from one step for the next", "  in the SimpleNamespace itself"])

    def test_tensors_that_are_no_buffers(self):
        class Stateful(Two):
            last = None

            def forward(self, x):
                y = self.first(x if self.last is None else x + self.last)
                self.last = y.detach()
                return y

        module = Stateful()
        self.assertEqual(self.refused(module).splitlines()[:2], ["the module keeps its attribute last from one step for the next", "  in the Stateful itself"])
        self.assertIsNone(module.last)

    def test_random_numbers_of_python(self):
        hint = "\n  hint: draw them with torch (torch.rand, torch.bernoulli), or hand them to the module as an argument"
        own = (numpy.random.default_rng(0), random.Random(0))
        for draw in (random.random, numpy.random.rand, own[0].random, own[1].random):
            module = outer(lambda self, x: self.layer(x) * (draw() > 0.5))  # noqa: B023
            module.generators = own[0]
            module[1].generator = own[1]
            self.assertEqual(self.refused(module),
                             "the module draws random numbers in Python or NumPy: exported, they would be the same in each step\n  in module 1 (Inner)" + hint)

    def test_written_arguments_and_parameters(self):
        class Writes(Two):
            def forward(self, x):
                x.add_(1)
                return self.first(x)

        line = inspect.getsourcelines(Writes)[1] + 2
        self.assertEqual(self.refused(Writes()), f'the module writes to its argument "x"\n  {__file__}:{line}: x.add_(1)\n'
                         "  hint: let it write to a copy: x = x.clone()")
        message = self.refused(nn.Embedding(7, 4, max_norm=1.0), torch.ones(2, dtype=torch.long))
        self.assertEqual(message.splitlines()[0], 'the module writes to its parameter "weight"')

    def test_buffers_with_gradients(self):
        class Leaks(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(4))

            def forward(self, x):
                y = self.first(x)
                self.mean = y.mean(0)
                return y

        self.assertEqual(self.refused(Leaks()), 'buffer "mean" of a Leaks is updated with a value that has a gradient\n'
                         "  hint: the next step cannot differentiate this one: use detach(), or torch.no_grad()")

    def test_buffers_that_change_their_shape(self):
        class Grows(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(4))

            def forward(self, x):
                self.seen = torch.cat([self.seen, self.seen])
                return self.first(x)

        self.assertEqual(self.refused(Grows()), 'buffer "seen" of a Grows becomes another kind of tensor while it runs\n'
                         "  before: torch.float32[4]\n  hint: buffers keep their dtype and shape from step to step")


class Calls(Refusals):
    """Arguments, losses and options."""

    def test_no_loss(self):
        hint = '\n  hint: give loss=..., a function of its output (and of target=...); or pass the labels with which it gives a "loss"'
        self.assertEqual(self.refused(nn.Linear(4, 4), loss=None),
                         "the module gives no scalar loss\n  it gives a tensor of torch.float32 with shape (2, 4)" + hint)

        class Logits(Two):
            def forward(self, x):
                return {"logits": self.first(x), "loss": None}

        self.assertEqual(self.refused(Logits(), loss=None), "the module gives no scalar loss\n  it gives a dict with logits, loss" + hint)

    def test_loss_functions(self):
        self.assertEqual(self.refused(nn.Linear(4, 4), loss=None, target=torch.ones(2)),
                         "target is given without loss\n  hint: give loss=..., a function of the module's output and the target")
        self.assertEqual(self.refused(nn.Linear(4, 4), loss=nn.MSELoss()).splitlines()[0],
                         "loss cannot be called as loss(output): missing a required argument: 'target'")
        self.assertEqual(self.refused(nn.Linear(4, 4), reduction="max"), 'there is no reduction "max"\n  hint: "mean" or "sum"')

    def test_arguments(self):
        class Batch:
            pass

        self.assertEqual(self.refused(nn.Linear(4, 4), torch.ones(2, 4), 3).splitlines()[0],
                         "the module cannot be called with these arguments: too many positional arguments")
        self.assertEqual(self.refused(nn.Linear(4, 4), Batch()).splitlines()[0],
                         'argument "input" is a Batch: which tensors it holds cannot be seen')
        from collections import UserDict

        self.assertEqual(self.refused(nn.Linear(4, 4), UserDict()).splitlines()[-1], "  hint: pass it as a plain dict: dict(batch)")

    def test_names_that_are_words_of_python(self):
        module = nn.ModuleDict({"in": nn.Linear(4, 4)})
        module.forward = lambda x: module["in"](x)
        self.assertEqual(self.refused(module), '"in" cannot be exported: "in" is a word of Python, and PyTorch writes such names as code\n'
                         '  hint: rename it, "in_" for instance')

    def test_tensors_that_share_memory(self):
        for device in ("cpu", "meta"):
            module = Two().to(device)
            module.second.weight = nn.Parameter(module.first.weight.data)
            self.assertEqual(self.refused(module), '"first.weight" and "second.weight" share memory, but are two tensors\n'
                             "  hint: tie them: other.weight = one.weight makes them one parameter")

    def test_dtypes(self):
        self.assertEqual(self.refused(outer(lambda self, x: self.layer(x)), loss=lambda output, target: (output * target).sum(),
                                      target=torch.ones(2, 4, dtype=torch.uint8)),
                         'argument "target" is a tensor of torch.uint8\n  Penstock has f64 f32 bf16 f16 i64 i32 bool\n'
                         "  hint: convert it before the module reads it: images.float() / 255, indices.long()")

    def test_samples(self):
        self.assertEqual(self.refused(nn.Bilinear(4, 4, 4), torch.ones(2, 4), torch.ones(3, 4)),
                         'argument "input2" cannot be cut into micro-batches along dim 0\n  it has shape [3, 4], "input1" has [2, 4]\n'
                         '  hint: samples lie along dim 0 of all; whole=("input2",) hands it whole to each micro-batch')
        # It is positions that are the same for all samples, wherever they stand among the arguments.
        for shape in ([1, 4], [4]):
            class Model(nn.Module):
                def forward(self, positions, x):
                    return (x + positions).sum()
            self.assertEqual(self.refused(Model(), torch.ones(shape), torch.ones(3, 4)),
                             f'argument "positions" cannot be cut into micro-batches along dim 0\n  it has shape {shape}, "x" has [3, 4]\n'
                             '  hint: samples lie along dim 0 of all; whole=("positions",) hands it whole to each micro-batch')
        self.assertEqual(self.refused(nn.Linear(4, 4), torch.ones(2, 4), whole=("input",)).splitlines()[0],
                         "the module is called without a tensor that could be cut into micro-batches")

        self.assertEqual(self.refused(nn.Linear(4, 4), torch.ones(0, 4)), 'argument "input" of shape [0, 4] has no samples\n'
                         "  hint: samples lie along dim 0; give a batch with one or more")

    def test_names_of_what_is_whole(self):
        self.assertEqual(self.refused(nn.Linear(4, 4), torch.ones(2, 4), whole=("inputt",)), 'whole names "inputt", which is no argument\n  arguments: input')

    def test_dynamic_names(self):
        self.assertEqual(self.refused(nn.Linear(4, 4), dynamic={"inputs": (0,)}),
                         'dynamic names "inputs", which is no argument\n  arguments: input')

        class Fixed(Two):
            def forward(self, x, y):
                return self.first(x) + y[:2]

        self.assertEqual(self.refused(Fixed(), torch.ones(2, 4), torch.ones(2, 4), dynamic={"x": (0,)}),
                         'dim 0 of argument "x" cannot vary: the module fixes it at 2\n'
                         "  hint: leave it out of dynamic=..., or see that no number in the module stands for it")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
