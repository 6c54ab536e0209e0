# SPDX-License-Identifier: Apache-2.0
"""From a module and the tensors that it is called with to its joint forward and backward graph."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.export._trace
import torch.fx.traceback
import torch.utils._pytree as pytree
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .arguments import Arguments
from .errors import PenstockError
from .growth import Growth, growth
from .losses import call_model, find_loss
from .places import place_of_error, shown_module
from .quiet import debugging
from .refusals import check_sizes
from .watch import Change, Watch, as_it_was, attribute_changes, buffers_in_place, settled, without_functions, without_python_randomness


log = logging.getLogger("penstock")


@dataclass
class Seen:
    """Findings of tracing: attributes of modules that changed, and notes for the user."""

    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


VALUES = ("the module's control flow or sizes depend on the values of tensors, which differ from step to step",
          "say it with ops on tensors, such as torch.where and masks, or make it an argument")
FIXED_SIZE = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\] as dynamic but your code specialized it to be a constant \((\d+)\)")
# These become plain ops only where oneDNN, which has them as one op with memory of its own, is off.
RECURRENT = frozenset((torch.ops.aten.lstm.input, torch.ops.aten.gru.input, torch.ops.aten.rnn_tanh.input, torch.ops.aten.rnn_relu.input))


class Traced(torch.nn.Module):
    """The module that is traced: a function of the call's tensors that gives the loss, and what else the module gives, detached."""

    def __init__(self, model: torch.nn.Module, arguments: Arguments, loss: Any, autocast: torch.dtype | None, seen: Seen) -> None:
        super().__init__()
        self.model, self.loss, self.autocast = model, loss, autocast
        self.call = lambda: (arguments, seen)  # a function, so that tracing does not look inside
        self.paths = {id(part): path for path, part in self.named_modules()}

    def forward(self, *tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        arguments, seen = self.call()
        args, kwargs, target = arguments.rebuild(tensors)
        split = [tensor for argument, tensor in zip(arguments.tensors, tensors) if argument.role == "split"]
        for tensor in split[1:]:
            torch._check(tensor.shape[0] == split[0].shape[0])
        with (without_python_randomness(self, self.paths), without_functions(self.paths), attribute_changes(self, seen.changes),
              buffers_in_place(self), Watch(self.paths)):
            result = call_model(self.model, args, kwargs, self.loss, target, self.autocast)
            loss, others, seen.notes = find_loss(result)
        return {"loss": loss, **{name: tensor.detach() for name, tensor in others.items()}}


@dataclass(frozen=True)
class Captured:
    """The joint graph and the forward graph that it was made of; the results' names; the traced module's parameters, and buffers with
    constants, by name; other names of a tensor that has several, by its first; what its numbers are for other samples, where sizes are no
    symbols and that can be told; notes for the user."""

    joint: GraphModule
    forward: GraphModule
    results: list[str]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    aliases: dict[str, list[str]]
    shape_env: ShapeEnv
    growth: Growth | None
    notes: list[str]


@contextlib.contextmanager
def dense_experts(model: torch.nn.Module) -> Iterator[None]:
    """Models of Hugging Face with experts can compute them in several ways, of which one has no sizes that depend on values."""
    kept = [(part, part.get_experts_implementation()) for part in model.modules()
            if hasattr(part, "get_experts_implementation") and hasattr(part, "set_experts_implementation")]
    chosen = [(part, ways) for part, ways in kept if any(way is not None for way in ways.values())]
    try:
        for part, _ in chosen:
            part.set_experts_implementation("batched_mm")
        yield
    finally:
        for part, ways in chosen:
            part.set_experts_implementation(ways)


def capture(model: torch.nn.Module, arguments: Arguments, loss: Any, autocast: torch.dtype | None,
            dynamic: Sequence[dict[int, Any]] | None) -> Captured:
    """Traces without running: tensors give dtypes and sizes alone. `dynamic`: for each tensor the dims whose sizes are symbols.

    Throws PenstockError where the module cannot be traced, with the module and line that it came to.
    """
    seen, begin = Seen(), time.perf_counter()
    traced = Traced(model, arguments, loss, autocast, seen)
    first = first_names((*traced.named_parameters(remove_duplicate=False), *traced.named_buffers(remove_duplicate=False)))
    parameters, buffers = dict(traced.named_parameters()), dict(traced.named_buffers())
    with as_it_was(traced), dense_experts(model), _tracing(traced):
        tensors = tuple(argument.tensor for argument in arguments.tensors)
        shapes = None if dynamic is None else (tuple(dynamic),)
        program = torch.export.export(traced, tensors, strict=False, dynamic_shapes=shapes)
        _check_changes(traced, seen, program, tensors, shapes)
        module = program.module()
        for node in module.graph.nodes:
            if node.op == "get_attr":
                node.target = first.get(node.target, node.target)
        constants = _name_constants(module)
        fakes = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
        mode = next(tensor.fake_mode for tensor in fakes)
        check_sizes(module, arguments.tensors, mode.shape_env)
        samples = next(fake.shape[0] for fake, argument in zip(fakes, arguments.tensors) if argument.role == "split")
        log.info("traced the forward of %s, %d ops, in %.1f s", type(model).__name__, len(module.graph.nodes), time.perf_counter() - begin)
        grown = None
        if isinstance(samples, int):
            again = Traced(model, arguments, loss, autocast, Seen())
            grown = growth(again, again.paths, arguments.tensors)
        _without_values(module, mode)
        recurrent = any(node.target in RECURRENT for node in module.graph.nodes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.fx.traceback.preserve_node_meta())
            stack.enter_context(torch.backends.mkldnn.flags(enabled=torch.backends.mkldnn.enabled and not recurrent))
            begin = time.perf_counter()
            joint = aot_export_joint_with_descriptors(stack, module, fakes).graph_module
        log.info("traced its gradients, %d ops together, in %.1f s", len(joint.graph.nodes), time.perf_counter() - begin)
    spec = program.call_spec.out_spec
    aliases: dict[str, list[str]] = {}
    for name, canonical in first.items():
        if name != canonical:
            aliases.setdefault(canonical, []).append(name)
    return Captured(joint, module, list(pytree.tree_unflatten(range(spec.num_leaves), spec)), parameters, buffers | constants, aliases,
                    mode.shape_env, grown, seen.notes)


def first_names(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """For each name the first name of the same tensor: what is tied has one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


@contextlib.contextmanager
def _tracing(traced: Traced) -> Iterator[None]:
    """Gradients are on; errors say where they are."""
    handled = sys.exc_info()[1]  # by the caller, who may export in an `except`: no cause of what happens here
    with torch.enable_grad(), _fake_weights(traced), _without_prints(), _any_layout(), _flat_modes():
        try:
            yield
        except Exception as error:
            found = _chain(error, handled)
            for inner in found:
                if isinstance(inner, PenstockError):
                    raise inner from None
            raise _untraceable(error, found, traced) from error


@contextlib.contextmanager
def _without_prints() -> Iterator[None]:
    """Keeps torch.export from printing the graph so far where tracing fails: the error says where it was."""
    if debugging():
        yield
        return
    torch.export._trace.print = lambda *_, **__: None
    try:
        yield
    finally:
        del torch.export._trace.print


@contextlib.contextmanager
def _flat_modes() -> Iterator[None]:
    """torch.export puts what runs under torch.autocast or torch.no_grad into graphs of their own. Their ops lose their modules when the
    backward is made, and a no_grad within an autocast is lost (torch 2.13): here ops that enter and leave a mode stay between the others."""
    passes = ((replace_autocast_with_hop_pass, "replace_autocast_with_hop_pass"), (replace_set_grad_with_hop_pass, "replace_set_grad_with_hop_pass"))
    originals = [getattr(holder, name) for holder, name in passes]
    for holder, name in passes:
        setattr(holder, name, lambda graph, signature: (graph, signature))
    try:
        yield
    finally:
        for (holder, name), original in zip(passes, originals):
            setattr(holder, name, original)


@contextlib.contextmanager
def _any_layout() -> Iterator[None]:
    """By its sizes a convolution's library is chosen, and with it how its result lies in memory. Values do not depend on that, so it is no
    condition on sizes."""
    original = torch._C._select_conv_backend

    def select(*args: Any, **kwargs: Any) -> Any:  # the operand by its place, or by name in PyTorch 2.11
        operand = args[0] if args else kwargs["input"]
        environment = getattr(getattr(operand, "fake_mode", None), "shape_env", None)
        with environment.suppress_guards() if environment else contextlib.nullcontext():
            return original(*args, **kwargs)

    torch._C._select_conv_backend = select
    try:
        yield
    finally:
        torch._C._select_conv_backend = original


def _chain(error: BaseException | None, handled: BaseException | None) -> list[BaseException]:
    """The error and what led to it, up to one that was handled before."""
    found: list[BaseException] = []
    while error is not None and error is not handled and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _untraceable(error: Exception, chain: list[BaseException], traced: Traced) -> PenstockError:
    places = [place for place in (place_of_error(inner, traced.paths) for inner in reversed(chain)) if place]
    names = {type(inner).__name__ for inner in chain}
    if names & {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"}:
        what, hint = VALUES
        return PenstockError(what, places[0] if places else [], hint)
    if fixed := FIXED_SIZE.search(str(error)):
        name = traced.call()[0].tensors[int(fixed[1])].name
        return PenstockError(f'dim {fixed[2]} of argument "{name}" cannot vary: the module fixes it at {fixed[3]}',
                             hint="leave it out of dynamic=..., or see that no number in the module stands for it")
    reason = str(error).strip().splitlines() or [""]
    return PenstockError(f"the module cannot be traced: {type(error).__name__}: {reason[0]}", places[0] if places else [],
                         "see that the module runs with these arguments; PyTorch's own error is the cause of this one")


def _check_changes(traced: Traced, seen: Seen, program: torch.export.ExportedProgram, tensors: tuple, shapes: Any) -> None:
    """Traces again as the second step would find the module. What a module keeps in attributes must not change what it computes: if both
    steps compute the same and leave the same numbers behind, all steps do."""
    first = list(seen.changes)
    if not first:
        return
    try:
        for change in first:
            change.apply(change.after)
        try:
            again = torch.export.export(traced, tensors, strict=False, dynamic_shapes=shapes).graph_module.code
        except Exception:
            again = ""
    finally:
        for change in first:
            change.apply(change.before)
    changed = settled(first, seen.changes) or (first[0] if again != program.graph_module.code else None)
    if changed:
        raise PenstockError(f"the module keeps its attribute {changed.name} from one step for the next",
                            [shown_module(changed.holder, traced.paths)],
                            "make it a buffer, self.register_buffer(...), or hand it to the module as an argument")


@contextlib.contextmanager
def _fake_weights(module: torch.nn.Module) -> Iterator[None]:
    """A module on the meta device is traced as if it were on the CPU: its tensors stand for ones there, without memory."""
    mode, kept, fakes = FakeTensorMode(), [], {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    kept.append((tensors, name, tensor))
                    tensors[name] = fakes.setdefault(id(tensor), _fake(tensor, mode, "cpu"))
    try:
        yield
    finally:
        for tensors, name, tensor in kept:
            tensors[name] = tensor


def _fake(tensor: torch.Tensor, mode: FakeTensorMode, device: Any) -> torch.Tensor:
    with mode:
        fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake


def _without_values(module: GraphModule, mode: FakeTensorMode) -> None:
    """The joint graph needs the tensors' types alone, all of one mode."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if isinstance(tensor, FakeTensor):
                    tensors[name] = _fake(tensor, mode, tensor.device)


def _name_constants(module: GraphModule) -> dict[str, torch.Tensor]:
    """Tensors made while tracing become buffers constant_0, constant_1, ..., so that the joint graph has them as inputs by name."""
    known = {name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))}
    names: dict[str, str] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr" or node.target in known:
            continue
        value = module
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor) and node.target not in names:
            names[node.target] = f"constant_{len(names)}"
            module.register_buffer(names[node.target], value.detach())
        node.target = names.get(node.target, node.target)
    module.recompile()
    return {name: module.get_buffer(name) for name in names.values()}
