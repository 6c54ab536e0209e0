# SPDX-License-Identifier: Apache-2.0
"""Which of a module's results is the loss."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .errors import PenstockError


def call_model(model: torch.nn.Module, args: Sequence, kwargs: Mapping[str, Any], loss: Callable | None, target: Any,
               autocast: torch.dtype | None) -> Any:
    """The module's result or, where there is a `loss`, loss(result, target); loss(result) where no target is given.

    With `autocast` the module runs under torch.autocast to that dtype, and a loss function gets what it returns in f32.
    """
    with torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext():
        output = model(*args, **kwargs)
    if loss is None:
        return output
    if autocast is not None:
        output = tree_map_only(torch.Tensor, lambda tensor: tensor.float() if tensor.dtype == autocast else tensor, output)
    return call_loss(loss, output, target)


def call_loss(loss: Callable, output: Any, target: Any) -> Any:
    """`loss(output, target)`; `loss(output)` where no target is given."""
    return loss(output) if target is None else loss(output, target)


def check_loss(loss: Callable | None, target: Any) -> None:
    """Throws PenstockError where a target has no loss function to go to, or the function takes another number of arguments."""
    if loss is None:
        if target is not None:
            raise PenstockError("target is given without loss", hint="give loss=..., a function of the module's output and the target")
        return
    given = (None,) if target is None else (None, None)
    try:
        inspect.signature(loss.forward if isinstance(loss, torch.nn.Module) else loss).bind(*given)
    except ValueError:
        return  # a function without a signature
    except TypeError as error:
        raise PenstockError(f"loss cannot be called as loss({'output' if target is None else 'output, target'}): {error}",
                            hint="it takes the module's output and, where target=... is given, the target") from None


def find_loss(result: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], list[str]]:
    """The loss in what a module or loss function returned, as a tensor without dims; other tensors at its top by name; notes.

    The loss is the result itself, its entry or attribute "loss", or the first of a tuple or list. A dict without "loss", or a list, is
    several losses, which are added: those of its scalars that have a gradient. Throws PenstockError where there is none of these.
    """
    named, notes = entries_of(result), []
    several = [name for name, value in named.items() if _is_scalar(value) and value.requires_grad]
    if isinstance(result, torch.Tensor):
        loss = result
    elif "loss" in named:
        loss = named.pop("loss")
    elif isinstance(result, tuple) and result:
        loss = named.pop(next(iter(named)))
    elif several:
        loss = sum(named.pop(name).reshape(()) for name in several)
        notes = [f"the loss is the sum of {', '.join(several)}"] if len(several) > 1 else []
    else:
        loss = None
    if not _is_scalar(loss):
        raise _no_loss(result)
    if not loss.requires_grad:
        raise PenstockError("the module's loss has no gradient: it depends on no parameter that is trained",
                            hint="parameters are trained where requires_grad is True; the loss must not be detached")
    return loss.reshape(()), {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}, notes


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def entries_of(result: Any) -> dict[str, Any]:
    """The entries that a module's output holds at its top, by name; a tensor holds nothing."""
    if isinstance(result, torch.Tensor):
        return {}
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return result._asdict()
    if isinstance(result, (tuple, list)):
        return {f"output.{i}": value for i, value in enumerate(result)}
    return dict(vars(result)) if hasattr(result, "__dict__") else {}


def _no_loss(result: Any) -> PenstockError:
    if isinstance(result, torch.Tensor):
        found = f"a tensor of {result.dtype} with shape {tuple(result.shape)}"
    else:
        names = list(entries_of(result))
        found = f"a {type(result).__name__}" + (f" with {', '.join(names)}" if names else "")
    return PenstockError("the module gives no scalar loss", [f"it gives {found}"],
                         'give loss=..., a function of its output (and of target=...); or pass the labels with which it gives a "loss"')
