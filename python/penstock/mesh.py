# SPDX-License-Identifier: Apache-2.0
"""A mesh of devices whose axes have the user's names, as the arguments of a trainer."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import PenstockError, did_you_mean

# The argument of `trainer` that says how many members an axis has.
ARGUMENTS = {"pipe": "actors", "data": "data", "expert": "expert", "context": "context", "tensor": "tensor"}
SPLITTING = ("expert", "context", "tensor")  # axes over which tensors are split, the last varies fastest


def named_axes(axes: Mapping[str, str]) -> dict[str, str]:
    """The user's name of each axis that has one, by the axis. Throws PenstockError for what is no axis, and for two names of one."""
    out: dict[str, str] = {}
    for name, axis in axes.items():
        if axis not in ARGUMENTS:
            raise PenstockError(f'axes={{"{name}": "{axis}"}}: there is no axis "{axis}"', [f"axes: {', '.join(ARGUMENTS)}"], did_you_mean(axis, ARGUMENTS))
        if axis in out:
            raise PenstockError(f'"{out[axis]}" and "{name}" of axes are both "{axis}"',
                                [f"there is one axis {axis}, as a dim that is split over it lies along one axis"],
                                "name another of tensor, context and expert, which differ in nothing but what the layout splits over them")
        if name in ARGUMENTS and name != axis:
            raise PenstockError(f'axes={{"{name}": "{axis}"}}: {name} is the name of another axis', hint="take a name that is none")
        out[axis] = name
    return out


def sizes_of(mesh: Mapping[str, int], axes: Mapping[str, str]) -> dict[str, int]:
    """The arguments of `trainer` that the mesh says, in its order; those that it does not name are 1. Throws PenstockError as `named_axes`, for a
    name that is no axis, and for a number of members that is none."""
    named_axes(axes)
    out: dict[str, int] = {}
    for name, size in mesh.items():
        axis = axes.get(name, name)
        if axis not in ARGUMENTS:
            raise PenstockError(f'mesh={{"{name}": {size!r}}}: there is no axis "{name}"',
                                [f"axes: {', '.join([*ARGUMENTS, *axes])}", "axes= gives them other names"], did_you_mean(name, {**ARGUMENTS, **axes}))
        if ARGUMENTS[axis] in out:
            raise PenstockError(f'the mesh names the axis {axis} twice, as "{name}" too')
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise PenstockError(f'mesh={{"{name}": {size!r}}}: an axis has a whole number of members, at least 1')
        out[ARGUMENTS[axis]] = size
    return out | {argument: 1 for argument in ARGUMENTS.values() if argument not in out}
