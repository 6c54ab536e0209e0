# SPDX-License-Identifier: Apache-2.0
"""Buffers on the meta device that no file holds: the module computes them when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .errors import PenstockError


def computed_buffers(module: torch.nn.Module, names: list[str]) -> dict[str, torch.Tensor]:
    """The values of buffers on the meta device that no file has (tables of angles, positions), as the module's `_init_weights` computes them.

    Throws PenstockError for one that it does not.
    """
    found: dict[str, torch.Tensor] = {}
    for path, part, initialise in _parts(module):
        prefix = f"{path}." if path else ""
        mine = [name for name in part._buffers if prefix + name in names]
        if mine and all(tensor.is_meta for tensor in part.parameters(recurse=False)):
            zeros, ones = (_filled(part, mine, initialise, value) for value in (0, 1))
            found |= {prefix + name: zeros[name] for name in mine if torch.equal(zeros[name], ones[name])}
    left = [name for name in names if name not in found]
    if left:
        raise PenstockError(f'the module has no value for its buffer "{left[0]}": it is on the meta device, and no file holds it',
                            hint="make the module on the CPU, or set the buffer before")
    return found


def _parts(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Callable[[torch.nn.Module], None]]]:
    """The modules with their paths that have a model around them, and how the innermost model initialises them."""
    models = {path: part for path, part in module.named_modules() if hasattr(part, "_init_weights")}
    for path, part in module.named_modules():
        around = [model for model in models if not model or path == model or path.startswith(model + ".")]
        if around:
            yield path, part, models[max(around, key=len)]._init_weights


def _filled(part: torch.nn.Module, names: list[str], initialise: Callable[[torch.nn.Module], None], value: int) -> dict[str, torch.Tensor]:
    """The values that initialising leaves in these buffers, filled with `value` before. All of the module is as it was afterwards."""
    before = dict(part._buffers)
    try:
        for name in names:
            part._buffers[name] = torch.full_like(before[name], value, device="cpu")
        with torch.no_grad():
            initialise(part)
        return {name: part._buffers[name] for name in names}
    finally:
        part._buffers.update(before)
