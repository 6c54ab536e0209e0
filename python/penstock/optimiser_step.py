# SPDX-License-Identifier: Apache-2.0
"""An optimiser's own step() as a graph for each parameter, for optimisers that no op of the program computes.

Numbers that change from step to step, learning rates and the number of steps, are scalars in double precision while step() is traced, and
what step() asks of them as numbers (`.item()`, `alpha=`, `math.sqrt`, `max`) is computed with them. What step() keeps, and how that begins, is
found by running it on small tensors; there the traced graph has to do what step() itself does.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import inspect
import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.compiler
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.proxy import TracerBase
from torch.overrides import TorchFunctionMode

from .errors import PenstockError
from .places import OWN
from .step_graph import step_graphs

# How step() computes, not what: one tensor after the other, and with scalars that are tensors.
MANNERS = {"foreach": False, "fused": False, "capturable": True, "differentiable": False}
WAY_OUT = "write step() with ops on tensors (torch.where for a branch), or train with another optimizer"
STEPS = 3  # in a trial
SIDE = 4  # the most elements along a dim of a trial's tensors


@dataclass(frozen=True)
class Kept:
    """The state that an optimiser keeps of a parameter. `tensors`: under which of its names, by the names in the program's state. `steps`: under which
    names the number of steps, as a number or a scalar like these. `others`: what does not change. `like` has the tensors' shapes and dtypes
    where they are not the parameter's."""

    tensors: Mapping[str, str]
    steps: Mapping[str, Any]
    others: Mapping[str, Any]
    like: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update:
    """The graph of a parameter's update as text, and what is kept of the parameter."""

    text: str
    kept: Kept


@dataclass(frozen=True)
class _Member:
    """A parameter that step() updates, the number of its group, what is kept of it, and with which number each tensor begins; None: the first
    step is another one than those behind it."""

    group: int
    parameter: torch.Tensor
    kept: Kept
    begins: Mapping[str, float] | None


def updates_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Update]:
    """The update of each trained parameter, by name; `names` has them by their ids. No values are read.

    Throws PenstockError for a step() that cannot be traced, for one that needs more than a parameter, its gradient and its state, and for one
    whose graph does something else than it does itself.
    """
    _check(optimizer)
    trials: dict[tuple, tuple] = {}
    found = [(number, parameter) for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]]
    members = []
    for number, parameter in found:
        if id(parameter) not in names:
            continue
        key = number, _small(parameter.shape), parameter.dtype, str(vars(parameter))
        if key not in trials:
            trials[key] = _trial(optimizer, number, parameter)
        members.append(_Member(number, parameter, *trials[key]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes, gradients = ([torch.empty(member.parameter.shape, dtype=member.parameter.dtype) for member in members] for _ in range(2))
        rates, step = [torch.empty((), dtype=torch.float64) for _ in optimizer.param_groups], torch.empty((), dtype=torch.int64)
        with _told(optimizer):
            members = [_of_shape(optimizer, member, fake) for member, fake in zip(members, fakes)]
            kept = [[torch.empty_like(like) for like in member.kept.like.values()] for member in members]
    graph = _traced(optimizer, members, fakes, gradients, kept, rates, step)
    texts = step_graphs(graph, type(optimizer).__name__, [(member.group, list(member.kept.tensors)) for member in members])
    return {names[id(member.parameter)]: Update(text, member.kept) for member, text in zip(members, texts)}


# --- running step() on other tensors


def _own_step(optimizer: torch.optim.Optimizer) -> Callable:
    """The class's step(), without what PyTorch's profiler and schedulers put around it."""
    step = type(optimizer).step
    return step.__wrapped__ if getattr(type(optimizer).step, "hooked", None) else step


def _twin(optimizer: torch.optim.Optimizer, parameters: Mapping[int, Sequence[torch.Tensor]], manners: Mapping[str, Any],
          rates: Sequence[Any] | None = None) -> torch.optim.Optimizer:
    """An optimizer with these parameters in its groups, and nothing kept of them."""
    twin = copy.copy(optimizer)
    twin.__dict__ = {name: value if callable(value) or name in ("param_groups", "state") else copy.deepcopy(value)
                     for name, value in vars(optimizer).items()}
    twin.state = defaultdict(dict)
    twin.param_groups = []
    for number, group in enumerate(optimizer.param_groups):
        own = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        own |= {key: value for key, value in manners.items() if key in own}
        twin.param_groups.append({**own, "params": list(parameters.get(number, ())), **({} if rates is None else {"lr": rates[number]})})
    return twin


class _ScalarTensors(TorchFunctionMode):
    """Computes with scalars that are tensors where PyTorch would take their numbers."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "item" and args[0].is_floating_point():
            return args[0].to(torch.float64)
        for key in ("alpha", "value"):  # of add and sub, addcmul and addcdiv: it multiplies the operand
            if isinstance(kwargs.get(key), torch.Tensor) and len(args) > 1:
                factor = torch.as_tensor(args[1]).to(functools.reduce(torch.promote_types, [x.dtype for x in args if isinstance(x, torch.Tensor)]))
                args = (args[0], factor * kwargs.pop(key), *args[2:])
        if name == "square_":  # functionalize does not know it
            return args[0].pow_(2)
        if name == "full_like" and isinstance(args[1], torch.Tensor):
            return torch.zeros_like(args[0], **kwargs) + args[1]
        return func(*args, **kwargs)


def _of_tensors(original: Callable, function: Callable) -> Callable:
    """A function of numbers that is `function` where one of them is a scalar tensor."""
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not any(isinstance(argument, torch.Tensor) and argument.dim() == 0 for argument in args):
            return original(*args, **kwargs)
        return function(*(torch.as_tensor(argument, dtype=torch.float64) for argument in args))
    return call


@contextlib.contextmanager
def _with_attributes(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Attributes have these values, by (holder, name), those of them that this version of PyTorch has."""
    originals = {place: getattr(*place) for place in values if hasattr(*place)}
    try:
        for place in originals:
            setattr(*place, values[place])
        yield
    finally:
        for place, value in originals.items():
            setattr(*place, value)


def _scalars_are_tensors() -> contextlib.AbstractContextManager[None]:
    """Functions of numbers take scalars that are tensors; torch.optim computes as when it is compiled, which asks for no numbers."""
    functions = {(math, "sqrt"): torch.sqrt, (math, "exp"): torch.exp, (math, "log"): torch.log, (math, "pow"): torch.pow,
                 (builtins, "max"): torch.maximum, (builtins, "min"): torch.minimum}
    values = {place: _of_tensors(getattr(*place), function) for place, function in functions.items()}
    return _with_attributes({**values, (torch.compiler, "_is_compiling_flag"): True})


def _stepped(optimizer: torch.optim.Optimizer, members: Sequence[_Member], tensors: Sequence[tuple], states: Sequence[dict],
             rates: Sequence[torch.Tensor]) -> list[dict]:
    """The state of each member after step() has run on these (parameter, gradient), of which it writes the parameters."""
    parameters: dict[int, list[torch.Tensor]] = {}
    for member, (parameter, gradient) in zip(members, tensors):
        vars(parameter).update(vars(member.parameter))
        parameter.grad = gradient
        parameters.setdefault(member.group, []).append(parameter)
    twin = _twin(optimizer, parameters, MANNERS, list(rates))
    twin.state.update({parameter: dict(state) for (parameter, _), state in zip(tensors, states) if state})
    with _scalars_are_tensors(), _ScalarTensors(), torch.no_grad():
        _own_step(optimizer)(twin)
    return [twin.state[parameter] for parameter, _ in tensors]


def _update(optimizer: torch.optim.Optimizer, members: Sequence[_Member], parameters: Sequence, gradients: Sequence, kept: Sequence[Sequence],
            rates: Sequence[torch.Tensor], step: torch.Tensor) -> list[list[torch.Tensor]]:
    """The next value of each parameter, and of what is kept of it. `step` counts the one being done."""
    def run(which: Sequence[int], states: Sequence[dict]) -> list[list[torch.Tensor]]:
        tensors = [(parameters[i].clone(), gradients[i].clone()) for i in which]
        after = _stepped(optimizer, [members[i] for i in which], tensors, states, rates)
        return [[tensor.to(gradients[i].dtype), *(state[name].to(like.dtype) for name, like in members[i].kept.like.items())]
                for i, (tensor, _), state in zip(which, tensors, after)]

    is_first, done, states = step == 1, (step - 1).to(torch.float64), []
    for member, tensors in zip(members, kept):
        state = {**member.kept.others, **{name: done.clone() for name in member.kept.steps}}
        for name, tensor in zip(member.kept.tensors.values(), tensors):
            begin = (member.begins or {}).get(name, 0)
            state[name] = torch.where(is_first, torch.full_like(tensor, begin), tensor) if begin else tensor.clone()
        states.append(state)
    out = run(range(len(members)), states)
    apart = [i for i, member in enumerate(members) if member.begins is None]
    for i, first in zip(apart, run(apart, [{}] * len(apart)) if apart else []):
        out[i] = [torch.where(is_first, a, b) for a, b in zip(first, out[i])]
    return out


def _traced(optimizer: torch.optim.Optimizer, members: Sequence[_Member], *inputs: Any) -> GraphModule:
    def update(parameters: Any, gradients: Any, kept: Any, rates: Any, step: Any) -> Any:
        return _update(optimizer, members, parameters, gradients, kept, rates, step)

    def users(_: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
        return traceback.StackSummary.from_list([frame for frame in frames if not frame.filename.startswith(OWN)])
    with _told(optimizer), _with_attributes({(TracerBase, "_filter_traceback_frames"): users}):
        return make_fx(torch.func.functionalize(update), tracing_mode="fake", record_stack_traces=True)(*inputs)


def _of_shape(optimizer: torch.optim.Optimizer, member: _Member, parameter: torch.Tensor) -> _Member:
    """The member with the shapes that its state has beside a parameter of its shape."""
    rates = [torch.empty((), dtype=torch.float64) for _ in optimizer.param_groups]
    state = _stepped(optimizer, [member], [(parameter.clone(), parameter.clone())], [{}], rates)[0]
    like = {name: torch.empty(state[name].shape, dtype=small.dtype) for name, small in member.kept.like.items()}
    return _Member(member.group, member.parameter, Kept(member.kept.tensors, member.kept.steps, member.kept.others, like), member.begins)


# --- trials on small tensors


class _Recorded(dict):
    """A parameter's state that remembers with which tensors its names began."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, torch.Tensor] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and name not in self:
            self.first[name] = value.detach().clone()
        super().__setitem__(name, value)


def _small(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(size, SIDE) for size in shape)


def _trial(optimizer: torch.optim.Optimizer, number: int, parameter: torch.Tensor) -> tuple[Kept, dict[str, float] | None]:
    """The state that step() keeps of a parameter like this one, and how it begins. Throws PenstockError where the traced step does something else."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return (torch.rand(_small(parameter.shape), generator=generator, dtype=torch.float64) - 0.5).to(parameter.dtype)
    begin, gradients = draw(), [draw() for _ in range(STEPS)]
    with _told(optimizer):
        states, parameters, first = _run(optimizer, number, parameter, begin, gradients)
        _, _, other = _run(optimizer, number, parameter, draw(), [draw()], rate=0.37)
    kept = _kept(optimizer, states)
    begins = {name: _constant(first.get(name), other.get(name)) for name in kept.like}
    for begun in ([begins] if None not in begins.values() else []) + [None]:
        if _does(optimizer, _Member(number, parameter, kept, begun), begin, gradients, parameters, states):
            return kept, begun
    raise PenstockError(f"the step of {type(optimizer).__name__} does something else when it is traced than when it runs",
                        [f"for parameters of {parameter.dim()} dims in group {number}"], WAY_OUT)


def _run(optimizer: torch.optim.Optimizer, number: int, like: torch.Tensor, begin: torch.Tensor, gradients: Sequence[torch.Tensor],
         rate: float | None = None) -> tuple[list[dict], list[torch.Tensor], dict[str, torch.Tensor]]:
    """The state that step() itself keeps after each of the steps, the parameter then, and the tensors with which the state began."""
    parameter = torch.nn.Parameter(begin.clone())
    vars(parameter).update(vars(like))
    twin = _twin(optimizer, {number: [parameter]}, {**MANNERS, "capturable": False})
    recorded = twin.state[parameter] = _Recorded()
    if rate is not None:
        twin.param_groups[number]["lr"] = rate
    before, drawn = _numbers(twin), torch.get_rng_state()
    states, parameters = [], []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        _own_step(optimizer)(twin)
        states.append({name: copy.deepcopy(value) for name, value in twin.state[parameter].items()})
        parameters.append(parameter.detach().clone())
    if not torch.equal(drawn, torch.get_rng_state()):
        torch.set_rng_state(drawn)
        raise PenstockError(f"the step of {type(optimizer).__name__} draws random numbers", hint=WAY_OUT)
    after = _numbers(twin)
    changed = [name for name in after if before.get(name) != after[name]]
    if changed:
        raise PenstockError(f"{type(optimizer).__name__} keeps {changed[0]} from one step for the next",
                            hint="keep it as a tensor in self.state[parameter]; the number of steps may be a number there")
    return states, parameters, recorded.first


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The numbers that the optimizer has beside its state, which step() might change."""
    own = {f"self.{name}": value for name, value in vars(optimizer).items() if name not in ("state", "param_groups") and not callable(value)}
    groups = {f'group["{key}"]': [group.get(key) for group in optimizer.param_groups] for group in optimizer.param_groups for key in group
              if key != "params"}
    plain = (bool, int, float, str, type(None))
    return {name: [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, plain)] for name, value in (own | groups).items()}


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _kept(optimizer: torch.optim.Optimizer, states: Sequence[dict]) -> Kept:
    """Which entries of the state after steps 1, 2, 3, ... are the number of steps, tensors, or do not change."""
    name, last = type(optimizer).__name__, states[-1]
    tensors, steps, others = {}, {}, {}
    for key, value in last.items():
        all_values = [state.get(key) for state in states]
        if [_number(each) for each in all_values] == list(range(1, STEPS + 1)):
            steps[key] = value
        elif isinstance(value, torch.Tensor) and all(map(functools.partial(_same_type, value), all_values)):
            tensors[key] = value
        elif isinstance(value, (bool, int, float, str, type(None))) and all(type(v) is type(value) and v == value for v in all_values):
            others[key] = value
        else:
            raise PenstockError(f'{name} keeps "{key}" of a parameter, a {type(value).__name__} that changes in each step',
                                hint="keep it as a tensor, which each step leaves with the same shape")
        if key in tensors and key in ("parameter", "gradient", "learning_rate", "step"):
            raise PenstockError(f'{name} keeps a tensor of a parameter as "{key}"', hint="give it another name")
    return Kept({key: key for key in tensors}, steps, others, tensors)


def _same_type(a: torch.Tensor, b: Any) -> bool:
    return isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _constant(first: torch.Tensor | None, other: torch.Tensor | None) -> float | None:
    """The number that both are full of; None: there is no such."""
    if first is None or other is None or first.numel() == 0:
        return None if first is None or other is None else 0.0
    number = first.reshape(-1)[0].item()
    return float(number) if bool((first == number).all()) and bool((other == number).all()) else None


def _does(optimizer: torch.optim.Optimizer, member: _Member, begin: torch.Tensor, gradients: Sequence[torch.Tensor],
          parameters: Sequence[torch.Tensor], states: Sequence[dict]) -> bool:
    """Whether the traced step does what step() did, from a state of zeros."""
    kept = [torch.zeros_like(like) for like in member.kept.like.values()]
    rates = [torch.tensor(float(group["lr"]), dtype=torch.float64) for group in optimizer.param_groups]
    traced = _traced(optimizer, [member], [begin], [gradients[0]], [kept], rates, torch.tensor(1))
    parameter = begin
    for step, gradient in enumerate(gradients):
        [[parameter, *kept]] = traced([parameter], [gradient], [kept], rates, torch.tensor(step + 1))
        if not all(map(_alike, [parameter, *kept], [parameters[step], *(states[step][name] for name in member.kept.like)])):
            return False
    return True


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are the same but for rounding, in f32 where that is what they have at best."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    limit = max(torch.finfo(a.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
    a, b = a.double(), b.double()
    return bool(((a - b).abs() <= limit * (1e-3 + b.abs())).all())


# --- refusals


def _check(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    needed = [argument.name for argument in list(inspect.signature(_own_step(optimizer)).parameters.values())[1:]
              if argument.default is inspect.Parameter.empty and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    if needed:
        raise PenstockError(f"the optimizer {name} is not supported: its step() needs {needed[0]}",
                            ["a training step has a batch's gradients once, and none for parameters that it tries"], "train with another optimizer")
    for attribute, value in vars(optimizer).items():
        keys = list(value) if isinstance(value, (dict, set)) else []
        if attribute not in ("param_groups", "state") and any(isinstance(leaf, torch.Tensor) for leaf in (*pytree.tree_leaves(value), *keys)):
            raise PenstockError(f"the optimizer {name} is not supported: it keeps tensors in self.{attribute}",
                                hint="keep what belongs to a parameter in self.state[parameter], and numbers in its group")


@contextlib.contextmanager
def _told(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Errors of step() name the optimizer and the line."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                  if "/torch/optim/" in frame.filename or not frame.filename.startswith(OWN)]
        place = [f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"] if frames else []
        depends = "data-dependent" in str(error) or "DataDependent" in type(error).__name__
        reason = "what it does depends on values" if depends else f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        raise PenstockError(f"the step of {type(optimizer).__name__} cannot be exported: {reason}", place, WAY_OUT) from error
