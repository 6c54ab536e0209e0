# SPDX-License-Identifier: Apache-2.0
"""The state of a trainer: parameters and buffers by the module's names, and what the optimiser keeps of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from . import _core
from .computed_buffers import computed_buffers
from .engine import told
from .errors import PenstockError
from .exports import Exports
from .pretrained import Folder
from .pretrained_files import saved_names, shards_of, write_config, write_folder
from .saved import Stored, in_memory
from .tensors import addresses, shared_tensor, tensor_of

AT_ONCE = 1 << 28  # bytes that are handed to the devices in one call


class State:
    """The state that the devices hold, by name. One call at a time, while no step runs."""

    def __init__(self, module: torch.nn.Module, exports: Exports, session: _core.Session, folder: Folder | None) -> None:
        """Values are the module's own or, of what a state_dict() has, the folder's. They go to the devices when a program is there (`adopt`)."""
        self._module, self._aliases, self._session, self._folder = module, exports.aliases, session, folder
        self._own = dict(exports.first.state)  # the module's own tensors
        self._read: set[str] = set()  # what the devices hold
        # what no program read until now: the module's own, or what is still in the folder's files
        self._unread: dict[str, torch.Tensor | Stored] = {name: self._own[name] for name in module.state_dict(keep_vars=True) if name in self._own}
        self._unread |= folder.values if folder else {}
        self._seen: dict[str, int] = {}  # how often each of the module's own was written to when it was last looked at
        self._given = 0  # how many steps were done when the module was last given the devices' values
        self._views: dict[str, torch.Tensor] = {}
        self._written: dict[str, int] = {}  # how often each view was written to when that was last taken over

    def adopt(self, exports: Exports) -> None:
        """Sets what these exports read and none before them did: the devices have zeros of it.

        Throws PenstockError for tensors on the meta device of which no value is known.
        """
        new = {name: tensor for name, tensor in exports.state_of_all().items() if name not in self._read}
        values = {name: self._unread.get(name, tensor) for name, tensor in new.items()}
        unknown = [name for name, value in values.items() if value.is_meta]
        if unknown and unknown[0] in self._unread:
            raise PenstockError(f'"{unknown[0]}" is on the meta device: it has no values', hint="weights= names a folder that has them")
        if unknown:
            values |= computed_buffers(self._module, unknown)
        self._own |= new
        self.set(values)  # before they are taken for set: an exception may come at any time
        self._read |= new.keys()
        self._unread = {name: value for name, value in self._unread.items() if name not in new}
        self._seen |= {name: tensor._version for name, tensor in new.items()}

    def all(self) -> dict[str, torch.Tensor]:
        """Copies by the names and in the order of module.state_dict(); tied ones are one tensor under each of their names."""
        found = {name: in_memory(value) for name, value in self._unread.items()} | self.copies(self._read)
        for alias, name in self._aliases.items():
            found[alias] = found[name]
        return {name: found.get(name, value.detach()) for name, value in self._module.state_dict(keep_vars=True).items()}

    def copies(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Copies of parameters, buffers and what the optimiser keeps ("first:NAME", "step"). Throws PenstockError for a name that is none."""
        shared = self._shared()
        return {name: shared[name].clone() if name in shared else self._gathered(name) for name in names}

    def view(self, name: str) -> torch.Tensor:
        """The tensor that a device has, where one of this process has all of it, and always the same one; else a copy."""
        if name not in self._views:
            shared = self._shared()
            if name not in shared:
                return self._gathered(name)
            self._views[name] = shared[name]
            self._written[name] = shared[name]._version
        return self._views[name]

    def before_step(self) -> None:
        """Takes over what was written to views: a tied or shared state is also on devices that they do not show."""
        self.set({name: view for name, view in self._views.items() if view._version != self._written[name]})
        self._written = {name: view._version for name, view in self._views.items()}

    def after_step(self) -> None:
        """Views show what a step left, also where another program has moved a state."""
        if self._views:
            shared = self._lying()
            for name, view in self._views.items():
                if view.data_ptr() != shared[name].data_ptr():
                    view.set_(shared[name])
                    self._written[name] = view._version

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets what has these names in module.state_dict(). Throws PenstockError for names that are not there, and what is no tensor with values."""
        if not isinstance(state, Mapping):
            raise PenstockError(f"a {type(state).__name__} is no state: it has no tensors by name",
                                hint="module.state_dict(), or a trainer's state_dict()")
        wrong = [name for name, value in state.items() if not isinstance(value, torch.Tensor) or value.is_meta or value.layout != torch.strided]
        if wrong:
            raise PenstockError(f'"{wrong[0]}" of the state is no dense tensor with values')
        known, aliases = self._module.state_dict(keep_vars=True), self._aliases
        unknown = [name for name in state if name not in known]
        if unknown:
            raise PenstockError(f'the module has no state "{unknown[0]}"')
        named = {aliases.get(name, name): value for name, value in state.items()}
        self._unread |= {name: value.detach().clone() for name, value in named.items() if name in self._unread}
        self.set({name: value for name, value in named.items() if name in self._read})
        self._seen = self._versions()

    def types(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers that a checkpoint has, each once, of the right dtype and shape. Beside what a state_dict() has these are the
        buffers that programs read: a step may change them."""
        named = (*self._module.named_parameters(remove_duplicate=False), *self._module.named_buffers(remove_duplicate=False))
        known = self._read | self._unread.keys()
        return {own: tensor.detach() for name, tensor in named if (own := self._aliases.get(name, name)) in known}

    def reader(self) -> Callable[[str], torch.Tensor]:
        """A function that gives the value of one name, in memory alone while it is used. Throws PenstockError where the state is of no step."""
        there = self._unread | self._shared()
        return lambda name: in_memory(there[name]) if name in there else self._gathered(name)

    def take(self, values: Mapping[str, torch.Tensor | Stored]) -> None:
        """Sets what `types` has, and what the optimiser keeps, by the trainer's own names; what has neither is left out."""
        self._unread |= {name: in_memory(value).clone() for name, value in values.items() if name in self._unread}
        own = self._module.state_dict(keep_vars=True).keys() | {name for name, _ in self._module.named_buffers()}
        self.set({name: value for name, value in values.items() if name in self._read or name not in own})
        self._seen = self._versions()

    def set(self, values: Mapping[str, torch.Tensor | Stored]) -> None:
        """Sets what has these names on the devices, some at a time, in the dtypes of the module."""
        for part in _parts(values, AT_ONCE):
            packed, kept = addresses({name: self._as_own(name, in_memory(value)) for name, value in part.items()})
            told(lambda: self._session.set_state(packed))
            del kept  # it had to live until here
        self.after_step()

    def check_unchanged(self) -> None:
        """Throws PenstockError where the module's own tensors were changed to other values than these, as no step would see that."""
        versions = self._versions()
        changed = [name for name, version in versions.items() if self._seen[name] != version and not self._own[name].is_meta]
        for name in changed:
            if not torch.equal(self._own[name].detach().cpu(), self.copies([name])[name]):
                raise PenstockError(f'"{name}" of the module was changed since the trainer was made', ["steps train the trainer's own copy of it"],
                                    "step.load_state_dict(module.state_dict()) takes the module's values, module.load_state_dict(step.state_dict()) "
                                    "gives the trainer's")
        self._seen = versions

    def is_newer(self, steps: int) -> bool:
        """Whether the devices have values of steps, of which so many are done, that nobody has given the module's own tensors."""
        return steps > self._given and self._seen == self._versions()

    def give(self, steps: int) -> None:
        """The module's own tensors get the values that the devices have. Throws PenstockError where they are on the meta device."""
        on_meta = [name for name, tensor in self._module.state_dict(keep_vars=True).items() if tensor.is_meta]
        if on_meta:
            raise PenstockError(f'"{on_meta[0]}" of the module is on the meta device: it cannot be given values', hint="state_dict() has them")
        self._module.load_state_dict(self.all())
        self._seen, self._given = self._versions(), steps

    def save_pretrained(self, path: str | os.PathLike, max_shard_size: int | str | None) -> None:
        """Writes the folder: keys, dtypes and, without `max_shard_size`, files as in the folder that the weights came from; else the module's."""
        module, folder, aliases = self._module, self._folder, self._aliases
        names = folder.names if folder else saved_names(module)
        types = {key: folder.tensors[key].type if folder else module.state_dict(keep_vars=True)[key].detach() for key in names}
        sizes = {key: tensor.numel() * tensor.element_size() for key, tensor in types.items()}
        files = {key: folder.files[key] for key in names} if folder and max_shard_size is None else shards_of(sizes, max_shard_size or "5GB")

        read = self.reader()
        write_folder(path, files, types, lambda key: read(aliases.get(names[key], names[key])))
        write_config(path, module, next((tensor.dtype for tensor in types.values() if tensor.is_floating_point()), None))

    def _as_own(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The value in the dtype of the module's tensor, where both are floats."""
        own = self._own.get(name)
        return value.to(own.dtype) if own is not None and own.is_floating_point() and value.is_floating_point() else value

    def _shared(self) -> dict[str, torch.Tensor]:
        """The tensors that lie whole on one device of this process, where they lie. Throws PenstockError where they are of no step."""
        told(self._session.check_state)
        return self._lying()

    def _lying(self) -> dict[str, torch.Tensor]:
        return {name: shared_tensor(*found) for name, found in told(self._session.share_state).items()}

    def _gathered(self, name: str) -> torch.Tensor:
        """A copy, put together from pieces where it lies in some."""
        return tensor_of(*told(lambda: self._session.state(name))).reshape(self._own[name].shape if name in self._own else -1)

    def _versions(self) -> dict[str, int]:
        """How often each of the module's own tensors was written to until now."""
        return {name: self._own[name]._version for name in self._read}


def _parts(values: Mapping[str, torch.Tensor | Stored], most: int) -> Iterator[dict[str, torch.Tensor | Stored]]:
    """The values in parts of at most so many bytes, or of one tensor."""
    part: dict[str, torch.Tensor | Stored] = {}
    free = most
    for name, value in values.items():
        size = value.numel() * value.element_size()
        if part and size > free:
            yield part
            part, free = {}, most
        part[name] = value
        free -= size
    if part:
        yield part
