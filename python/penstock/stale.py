# SPDX-License-Identifier: Apache-2.0
"""A warning where a module's state_dict() is asked for while a trainer has newer values."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import torch


class StaleStateDict:
    """Called before the module's state_dict(): warns, once, where a living trainer has done steps that its module has not been given."""

    def __init__(self, trainer: Any) -> None:
        """The trainer says `is_stale` and `steps`; it is not kept alive."""
        self._trainer, self._warned = weakref.ref(trainer), False

    def __call__(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        trainer = self._trainer()
        if self._warned or keep_vars or trainer is None or not trainer.is_stale():  # with keep_vars it is the tensors that are asked for
            return
        self._warned = True
        done = f"{trainer.steps} step" + "s" * (trainer.steps != 1)
        warnings.warn(f"{type(module).__name__}.state_dict() has not the values of its penstock trainer, which has done {done}: step.sync() gives the "
                      "module these, step.state_dict() has them", stacklevel=3)

    def __reduce__(self) -> Any:
        """A copy of the module, or one that is read from a file, is no trainer's: there it is something of Python's own that does nothing."""
        return functools.partial, (slice,)


def warn_where_stale(module: torch.nn.Module, trainer: Any) -> None:
    """For as long as the trainer lives."""
    hook = module.register_state_dict_pre_hook(StaleStateDict(trainer))
    weakref.finalize(trainer, hook.remove).atexit = False
