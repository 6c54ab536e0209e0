# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training loop: files step-NUMBER.safetensors in a folder, each there whole or not at all.

A file has the parameters, buffers and what the optimiser keeps by the trainer's names, which no plan changes, and as texts the number of steps, the
optimizer's groups, the state of random numbers of this process, and what the loop's other parts gave (a scheduler, a loader).
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from . import saved
from .errors import PenstockError, did_you_mean
from .files import parse_json
from .plain_values import packed, unpacked
from .loaders import random_state, set_random_state
from .saved import Stored

log = logging.getLogger("penstock")

FORMAT, VERSION = "penstock training", 1
NAME = re.compile(r"step-(\d+)\.safetensors")
LOOP = "loop:"  # begins the names of tensors that are no state of the trainer
SHOWN = 4  # differences that an error lists


@dataclass(frozen=True)
class Checkpoint:
    """An opened file: `tensors` are the trainer's state, `text` and the tensors of `loop` what `packed` made of the rest,
    which are `values`."""

    path: Path
    tensors: Mapping[str, Stored]
    text: str
    loop: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]
    damaged: Mapping[Path, str] = field(default_factory=dict)  # newer ones that were passed over, and what is wrong with each


def resume(folder: str | os.PathLike, step: Any, *, at: int | None = None, begin: bool = False, **parts: Any) -> int:
    """The trainer `step` goes on from the folder's newest intact checkpoint, or from that of step `at`; how many steps were done then.

    `parts` are those of the loop that `step.save` was given, by the same names: each takes its state by load_state_dict. None leaves one out.
    The random numbers of this process go on too. Plan, devices and processes may be others than those of the run that wrote it. `begin`: where
    the folder has no checkpoint nothing happens, and 0 comes back, so that one script begins a run and goes on with it.

    Throws PenstockError where there is none, for a file that is damaged or of a newer version, and where parameters, optimizer, seed or parts are
    others, which it names, or where a part does not take its state. The trainer and all parts are as they were then. Damaged checkpoints that are newer
    are passed over: a warning names each and what is wrong with it, and it is renamed to step-NUMBER.safetensors.damaged. One of step `at` is refused.
    """
    taking = {name: part for name, part in parts.items() if part is not None}
    before = copy.deepcopy(states_of(taking))
    classes = {name: "" if part is None else class_of(part) for name, part in parts.items()}
    begun = []

    def load(values: Mapping[str, Any]) -> None:
        for name, part in taking.items():
            begun.append(name)
            _load(name, part, values["parts"][name])
    try:
        path, text, tensors = step.restored(folder, at, begin, classes, load)
    except BaseException:
        for name in begun:
            taking[name].load_state_dict(before[name])
        raise
    if not path:
        return 0
    values = values_of(path, text, tensors)
    set_random_state(values["random"])
    return values["steps"]


def _load(name: str, part: Any, state: Any) -> None:
    try:
        part.load_state_dict(state)
    except PenstockError as error:
        raise PenstockError(f"{name}: {error.what}", error.details, error.hint) from None
    except Exception as error:
        raise PenstockError(f"{name}, a {type(part).__name__}, does not take its state of the checkpoint: {type(error).__name__}: {error}",
                            hint=f"make it as the run did that saved it, or {name}=None leaves it") from error


def values_of(path: str, text: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Gives what `write` was given as texts. Throws PenstockError where it is none."""
    values = unpacked(parse_json(text, f"{path}: its texts"), tensors)
    wanted = {"steps": int, "seed": int, "kept": list, "parts": dict, "random": dict}
    if not isinstance(values, dict) or any(not isinstance(values.get(name), kind) for name, kind in wanted.items()):
        raise PenstockError(f"{path}: its texts are not those of a checkpoint")
    return values


def write(folder: str | os.PathLike, texts: Mapping[str, Any], types: Mapping[str, torch.Tensor], value: Callable[[str], torch.Tensor],
          keep: int | None) -> Path:
    """Writes the checkpoint of texts["steps"] steps, and removes all but the `keep` newest. `texts` are values as `packed` takes them, `types` the
    dtypes and shapes of the trainer's state, value(name) its tensors. Throws PenstockError where the folder has a later checkpoint."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise PenstockError(f"keep={keep!r} is not what keep takes", hint="how many checkpoints stay, at least 1; None: all")
    folder, steps = Path(folder), texts["steps"]
    later = [number for number in numbers_of(folder) if number > steps]
    if later:
        raise PenstockError(f"{folder} has a checkpoint of step {later[-1]}, and the trainer has done {steps}",
                            ["a run that goes on from the folder would take that one"],
                            "penstock.resume goes on from it; else move it away, or save elsewhere")
    loop: dict[str, torch.Tensor] = {}
    text = json.dumps(packed(texts, LOOP, loop))
    path = folder / f"step-{steps}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("step-*.safetensors.*.part"):  # of a process that ended while it wrote
            part.unlink(missing_ok=True)
        saved.write(path, {"format": FORMAT, "version": str(VERSION), "training": text}, {**types, **loop},
                    lambda name: loop[name] if name in loop else value(name))
        for number in numbers_of(folder)[:-keep] if keep is not None else ():
            (folder / f"step-{number}.safetensors").unlink(missing_ok=True)
    except OSError as error:
        raise PenstockError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
    return path


def numbers_of(folder: Path) -> list[int]:
    """The numbers of steps of which the folder has checkpoints, the smallest first; none where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for entry in folder.iterdir() if (found := NAME.fullmatch(entry.name)))


class Damaged(PenstockError):
    """A checkpoint's file is not what was written."""


def opened(folder: str | os.PathLike, at: int | None) -> Checkpoint:
    """The folder's newest intact checkpoint, or that of step `at`. Throws PenstockError where there is none, it is damaged, cannot be read (it may be
    intact) or is of a newer version."""
    folder = Path(folder)
    numbers = numbers_of(folder)
    if not numbers or (at is not None and at not in numbers):
        what = f"of step {at} " if numbers else ""
        raise PenstockError(f"there is no checkpoint {what}in {folder}", [f"there are those of {', '.join(map(str, numbers))}"] if numbers else [],
                            "" if numbers else "step.save(folder) writes one; penstock.resume(..., begin=True) begins where there is none")
    damaged: dict[Path, str] = {}
    for number in reversed(numbers) if at is None else [at]:
        path = folder / f"step-{number}.safetensors"
        try:
            return replace(_opened(path, [each for each in numbers if each < number]), damaged=damaged)
        except Damaged as error:
            if at is not None:
                raise
            damaged[path] = error.what
    raise PenstockError(f"no checkpoint in {folder} is intact", list(damaged.values()), "begin anew, in another folder")


def set_aside(found: Checkpoint) -> None:
    """The damaged checkpoints that were passed over get other names, and are named, so that the run can write its own again."""
    for path, what in found.damaged.items():
        aside = path.with_name(path.name + ".damaged")
        with contextlib.suppress(OSError):  # in a folder that cannot be written, where writing a checkpoint says so
            path.replace(aside)
        log.warning("%s is damaged (%s); %s is the newest intact one, and it is %s from now on", path, what, found.path, aside.name)


def _opened(path: Path, before: list[int]) -> Checkpoint:
    """The file's checkpoint; `before`: the steps of those before it, for messages. Throws PenstockError as `opened`, for damage Damaged."""
    with _damage_in_words(path, before):
        metadata, tensors = saved.stored(path, sealed=True)
    text = _text(path, metadata)
    with _damage_in_words(path, before):
        for tensor in tensors.values():
            tensor.read()  # all checksums, before anything of it is taken
        loop = {name: tensor.read() for name, tensor in tensors.items() if name.startswith(LOOP)}
        return Checkpoint(path, {name: tensor for name, tensor in tensors.items() if name not in loop}, text, loop, values_of(str(path), text, loop))


@contextlib.contextmanager
def _damage_in_words(path: Path, before: list[int]) -> Iterator[None]:
    """A file that cannot be read: the hint is the one before, where there are such."""
    try:
        yield
    except (PenstockError, OSError) as error:
        hint = f"at={before[-1]} goes on from the one before" if before else getattr(error, "hint", "")
        if isinstance(error, OSError):
            raise PenstockError(f"cannot read {path}: {error.strerror}", hint=hint) from None
        raise Damaged(error.what, error.details, hint) from None


def _text(path: Path, metadata: Mapping[str, str]) -> str:
    """The texts as they were packed. Throws PenstockError for a file of another format or a newer version."""
    version = metadata.get("version", "")
    if metadata.get("format") != FORMAT or not version.isdecimal():
        raise PenstockError(f"{path} is no checkpoint of a trainer", hint="step.save(folder) writes one")
    if int(version) > VERSION:
        raise PenstockError(f"{path} was written by a newer penstock: its version is {version}, and this one reads up to {VERSION}",
                            hint="install the newer one")
    return metadata.get("training", "")


def check_same(path: Path, what: str, theirs: Mapping[str, Any], own: Mapping[str, Any], hint: str) -> None:
    """Throws PenstockError where the tensors of the checkpoint are others than the trainer's; `what` begins the message."""
    def named(tensor: Any) -> str:
        kind = tensor.type if isinstance(tensor, Stored) else tensor
        return f"{str(kind.dtype).removeprefix('torch.')}{list(kind.shape)}"
    missing = [f'"{name}", {named(own[name])}, is not in the checkpoint' for name in own if name not in theirs]
    more = [f'"{name}", {named(theirs[name])}, is in the checkpoint alone' for name in theirs if name not in own]
    other = [f'"{name}" is {named(theirs[name])} in the checkpoint, {named(own[name])} here' for name in own
             if name in theirs and named(theirs[name]) != named(own[name])]
    found = missing + more + other
    if found:
        rest = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise PenstockError(f"{path} is of {what}", [*found[:SHOWN], *rest], hint)


# --- the loop around a trainer


def states_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each of the loop's parts. Throws PenstockError for one that has none."""
    for name, part in parts.items():
        if not (callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))):
            raise PenstockError(f"{name} is a {type(part).__name__}, which has no state_dict and load_state_dict",
                                hint="penstock.resumable(loader) gives any iterable of batches these")
    return {name: part.state_dict() for name, part in parts.items()}


def class_of(part: Any) -> str:
    return type(part).__name__


def check_parts(path: Path, states: Mapping[str, Any], saved_classes: Mapping[str, str], taken: Mapping[str, str]) -> None:
    """Throws PenstockError where the checkpoint has other parts than those of `taken`, classes by name, "" where the state is left, and where a class is
    another one than was saved; files of older versions say none."""
    for name in [name for name, wants in taken.items() if wants and name not in states]:
        raise PenstockError(f'{path} has no "{name}"', [f"its parts: {', '.join(states) or 'none'}"],
                            did_you_mean(name, states) or f"step.save(folder, {name}={name}) writes it")
    for name, own in taken.items():
        if own and saved_classes.get(name, own) != own:
            raise PenstockError(f'{path} has the state of {name} of a {saved_classes[name]}, and this one is a {own}',
                                hint=f"make it a {saved_classes[name]}, or {name}=None leaves its state")
    for name in states.keys() - taken.keys():
        raise PenstockError(f'{path} has a state of "{name}", which nothing takes', ["a loop that goes on without it would be another one"],
                            f"penstock.resume(..., {name}={name}), or {name}=None to leave it")
