# SPDX-License-Identifier: Apache-2.0
"""Some things that a module does while it is traced its graph would silently not say: they are refused, or turned into what it does say."""

from __future__ import annotations

import collections
import contextlib
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from .errors import PenstockError
from .places import place_now, shown_module, user_name

PYTHON_ONLY = ("it is registered in Python, so that no other program can run it",
               "register it in C++ (TORCH_LIBRARY), or write it with PyTorch's own ops")
GENERATED = "GeneratedBackwardFor_"  # the functions that torch.library makes of ops with a backward
KEEPS_INPUTS = getattr(checkpoint, "_NoopSaveInputs", ())  # PyTorch 2.11's
HOOKS = "what a hook does to gradients is not in the graph"
FIXED = ("which parameters are trained is fixed before a step", "freeze parameters before exporting, or use detach()")
REFUSED = {
    torch.Tensor.register_hook: ("register_hook", HOOKS, "let the loss say it"),
    torch.Tensor.register_post_accumulate_grad_hook: ("register_post_accumulate_grad_hook", HOOKS, "let the loss say it"),
    torch.Tensor.requires_grad_: ("requires_grad_", *FIXED),
    torch.Tensor.requires_grad.__set__: ("requires_grad = ...", *FIXED),
    torch.Tensor.data.__set__: ("data = ...", "the graph does not see it", "update a buffer in place"),
}


class Watch(TorchFunctionMode):
    """Sees each function that is called on a tensor. `.data` reads as `.detach()`, which is what it means to gradients."""

    def __init__(self, modules: Mapping[int, str]) -> None:
        super().__init__()
        self.modules = modules

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if torch.is_inference_mode_enabled():
            raise PenstockError("torch.inference_mode cannot be exported: the graph would have gradients where it has none",
                                place_now(self.modules), "use torch.no_grad(), which means the same to a training step")
        if function in REFUSED and not _keeps_requires_grad(function, args, kwargs or {}):
            name, reason, hint = REFUSED[function]
            raise PenstockError(f"Tensor.{name} cannot be exported: {reason}", place_now(self.modules), hint)
        if function == torch.Tensor.data.__get__:
            return args[0].detach()
        return function(*args, **(kwargs or {}))


def _keeps_requires_grad(function: Any, args: tuple, kwargs: Mapping[str, Any]) -> bool:
    if function not in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
        return False
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    return args[0].requires_grad == wanted


def check_kind(module: torch.nn.Module) -> None:
    """Throws PenstockError for modules that cannot be traced, or not as they are meant, whatever they compute."""
    for path, part in module.named_modules():
        place, kind = f'module "{user_name(path)}"' if path else "the module", type(part).__name__
        if isinstance(part, torch.jit.ScriptModule):
            raise PenstockError(f"{place} was compiled by TorchScript, which cannot be traced again",
                                hint="give the module that it was made of")
        if kind in WRAPPERS:
            raise PenstockError(f"{place} is a {kind}, which sends gradients to other processes itself",
                                hint="give the module that it wraps, .module; data=, and processes started by torchrun, are Penstock's own")
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.training and part.track_running_stats and part.momentum is None:
            raise PenstockError(f"{place}, a {kind}, has momentum=None: by how much it moves its statistics depends on how many batches it has seen",
                                hint="give it a momentum, such as 0.1, or put it in evaluation mode by .eval()")
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse and part.weight.requires_grad:
            raise PenstockError(f"{place}, of {kind}, has sparse=True: the gradient of its table is no dense tensor",
                                hint="give it sparse=False: its values are the same, and so are the updates of optimizers that take both")
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if torch.nn.parameter.is_lazy(tensor):
                raise PenstockError(f'"{name}" of {place}, a {kind}, has no shape before the module has run once',
                                    hint="run the module on a batch first: module(batch)")


def check_hooks(module: torch.nn.Module) -> None:
    """Throws PenstockError where a module or a parameter has a hook on gradients: the graph would leave it out."""
    hint = "remove the hook; what it does to gradients can be done in the loss or in the optimizer"
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise PenstockError(f'module "{user_name(path)}" has a backward hook: {HOOKS}', hint=hint)
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise PenstockError(f'parameter "{user_name(name)}" has a hook: {HOOKS}', hint=hint)


@contextlib.contextmanager
def without_functions(modules: Mapping[int, str]) -> Iterator[None]:
    """Refuses torch.autograd.Function: tracing sees its forward alone, and would differentiate that. A checkpoint's backward is that, and
    what keeps its inputs has none."""
    def apply(cls: type, *args: Any) -> Any:
        if cls is checkpoint.CheckpointFunction:
            function, _, *operands = args
            return function(*operands)
        if cls is KEEPS_INPUTS:
            return original.__get__(None, cls)(*args)
        if cls.__name__.startswith(GENERATED):
            raise PenstockError(f"{cls.__name__.removeprefix(GENERATED)} cannot be exported: {PYTHON_ONLY[0]}",
                                place_now(modules), PYTHON_ONLY[1])
        raise PenstockError(f"torch.autograd.Function {cls.__name__} cannot be exported: its backward would be ignored",
                            place_now(modules), "write it with ops and detach(): a straight-through estimate is x + (f(x) - x).detach()")

    original = torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


@contextlib.contextmanager
def without_python_randomness(module: torch.nn.Module, modules: Mapping[int, str]) -> Iterator[None]:
    """Refuses numbers drawn by generators of Python or NumPy: exported, they would be the same in each step. They are looked at wherever a
    module begins or ends, which tells whose they are."""
    numpy = sys.modules.get("numpy")
    own = [value for holder in _holders(module) for value in vars(holder).values()]
    python = [random, *(value for value in own if isinstance(value, random.Random))]
    arrays = [numpy.random.mtrand._rand, *(value for value in own if hasattr(value, "bit_generator"))] if numpy else []

    def states() -> list[Any]:
        return [generator.getstate() for generator in python] + [_bits(generator) for generator in arrays]

    before, running = states(), [module]

    def check() -> None:
        if states() != before:
            raise PenstockError("the module draws random numbers in Python or NumPy: exported, they would be the same in each step",
                                [shown_module(running[-1], modules)],
                                "draw them with torch (torch.rand, torch.bernoulli), or hand them to the module as an argument")

    def begin(part: torch.nn.Module, _: Any) -> None:
        check()
        running.append(part)

    def end(part: torch.nn.Module, *_: Any) -> None:
        check()
        while running.pop() is not part:  # one that ended by an exception has not come here
            pass

    hooks = [register_module_forward_pre_hook(begin), register_module_forward_hook(end)]
    try:
        yield
        check()
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def buffers_in_place(module: torch.nn.Module) -> Iterator[None]:
    """Turns `self.buffer = value` into an update of the buffer, which is what the next step reads."""
    before = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items() if buffer is not None]
    yield
    for part, name, buffer in before:
        value = part._buffers.get(name)
        if value is not None and value.requires_grad:
            raise PenstockError(f'buffer "{name}" of a {type(part).__name__} is updated with a value that has a gradient',
                                hint="the next step cannot differentiate this one: use detach(), or torch.no_grad()")
        if value is buffer:
            continue
        if value is None or value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise PenstockError(f'buffer "{name}" of a {type(part).__name__} becomes another kind of tensor while it runs',
                                [f"before: {buffer.dtype}{list(buffer.shape)}"], "buffers keep their dtype and shape from step to step")
        buffer.copy_(value)
        part._buffers[name] = buffer


@dataclass
class Change:
    """An attribute of a module that is another after the module ran; none of its parameters, buffers and modules. Also an attribute of an
    object that is a module's attribute."""

    holder: Any
    name: str
    before: Any
    after: Any

    def apply(self, value: Any) -> None:
        if value is MISSING:
            vars(self.holder).pop(self.name, None)
        else:
            setattr(self.holder, self.name, value)


@contextlib.contextmanager
def attribute_changes(module: torch.nn.Module, changes: list[Change]) -> Iterator[None]:
    """Sets `changes` to what changed."""
    before = [(holder, {name: _kept(value) for name, value in vars(holder).items()}) for holder in _holders(module)]
    yield
    changes[:] = [Change(holder, name, old, value) for holder, attributes in before for name, value in vars(holder).items()
                  if name not in INNER and not _same(old := attributes.get(name, MISSING), value)]


def settled(first: list[Change], second: list[Change]) -> Change | None:
    """The first attribute whose number or text is another after the second step than after the first; None if all further steps find the
    module as the second did."""
    known = {(id(change.holder), change.name) for change in first}
    return next((change for change in second if (id(change.holder), change.name) not in known or
                 isinstance(change.before, SIMPLE) or isinstance(change.after, SIMPLE)), None)


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Whatever is done inside, the modules, what they hold and their classes are afterwards what they were: attributes, hooks, tensors by their
    names, replaced functions. What a first call sets up would otherwise be set up a second time, or in part."""
    holders, containers = _everything(module)
    attributes = [(holder, dict(vars(holder))) for holder in holders]
    items = [(container, list(container.items() if isinstance(container, dict) else container)) for container in containers]
    try:
        yield
    finally:
        for holder, before in attributes:
            _restore(holder, before)
        for container, before in items:
            _refill(container, before)


WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
MISSING = object()  # the value of an attribute that is not there
SIMPLE = (int, float, str)
OTHERS = (torch.nn.Module, torch.Tensor, type, FunctionType, MethodType, ModuleType, random.Random)
CONTAINERS = (dict, collections.OrderedDict, collections.defaultdict, list, set, collections.deque)
LIBRARIES = frozenset(("builtins", "torch", "numpy")) | sys.stdlib_module_names - {"types"}
INNER = frozenset(("_parameters", "_buffers", "_modules", "_flat_weights"))


def _holders(module: torch.nn.Module) -> list[Any]:
    """The modules, and the objects that are their attributes and have attributes themselves."""
    holders = {id(part): part for part in module.modules()}
    for part in list(holders.values()):
        for value in vars(part).values():
            if hasattr(value, "__dict__") and not isinstance(value, OTHERS):
                holders.setdefault(id(value), value)
    return list(holders.values())


def _everything(module: torch.nn.Module) -> tuple[list[Any], list[Any]]:
    """The modules, the objects that they hold, also within others and in containers, and the classes of all of these, but for those of
    libraries; and the containers."""
    holders: dict[int, Any] = {}
    containers: dict[int, Any] = {}
    open_values: list[Any] = list(module.modules())
    while open_values:
        value = open_values.pop()
        if id(value) in holders or id(value) in containers:
            continue
        if type(value) in CONTAINERS:
            containers[id(value)] = value
            open_values += value.values() if isinstance(value, dict) else value
        elif isinstance(value, torch.nn.Module) or (hasattr(value, "__dict__") and not isinstance(value, OTHERS) and _is_known(type(value))):
            holders[id(value)] = value
            open_values += vars(value).values()
            holders |= {id(cls): cls for cls in type(value).__mro__ if _is_known(cls)}
    return list(holders.values()), list(containers.values())


def _is_known(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in LIBRARIES


def _restore(holder: Any, before: Mapping[str, Any]) -> None:
    """Gives a module, another object or a class the attributes that it had; those that are what they were are not touched."""
    now = dict(vars(holder))
    changed = {name: value for name, value in before.items() if now.get(name, MISSING) is not value}
    if not isinstance(holder, type):
        for name in now.keys() - before.keys():
            del vars(holder)[name]
        vars(holder).update(changed)
        return
    for name in now.keys() - before.keys():
        type.__delattr__(holder, name)
    for name, value in changed.items():
        type.__setattr__(holder, name, value)


def _refill(container: Any, before: list[Any]) -> None:
    """Gives a container the items that it had, in their order."""
    container.clear()
    container.update(before) if isinstance(container, (dict, set)) else container.extend(before)


def _bits(generator: Any) -> bytes:
    """A generator's state. Written as text, it would take a third of the time of an export."""
    return pickle.dumps(generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state())


def _kept(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict, set) else value


def _same(a: Any, b: Any) -> bool:
    if type(a) in (list, set) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a is b or (isinstance(a, SIMPLE) and type(a) is type(b) and a == b)
