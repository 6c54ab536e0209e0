# SPDX-License-Identifier: Apache-2.0
"""A key of all that an export depends on: the module's classes and attributes, the code that they reach, the files of all code that is no
package's, the call and PyTorch's settings.

Where something cannot be told, there is no key, and the export is made again.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import hashlib
import os
import sys
import sysconfig
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

OWN = Path(__file__).resolve().parent
PACKAGES = tuple({os.path.realpath(path) + os.sep for path in (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
                                                       str(Path(torch.__file__).parent), str(OWN))})
SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum, range,
          type(Ellipsis))
NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
          types.MemberDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
LARGEST = 1 << 26  # bytes of a tensor whose values are part of the key
SKIPPED = frozenset(("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "_abc_impl"))


class Unknown(Exception):
    """Something that an export may depend on and no key can say."""


def export_key(module: torch.nn.Module, loss: Any, call: tuple, options: Iterable[Any]) -> str:
    """The key of exporting `module` called as `call`, (args, kwargs, target). Throws Unknown."""
    key = _Key()
    own = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in sorted(OWN.glob("*.py"))]
    key.text(sys.version, torch.__version__, own, _settings())
    key.files_of_users()
    for part in (module, loss, list(options)):
        key.add(part)
    leaves, spec = pytree.tree_flatten(call)
    key.text(str(spec))
    for leaf in leaves:
        key.tensor_type(leaf) if isinstance(leaf, torch.Tensor) else key.add(leaf)
    return key.hash.hexdigest()


def _settings() -> list[Any]:
    """The parts of PyTorch's state that change which ops are traced."""
    cuda = torch.backends.cuda
    return [torch.get_default_dtype(), str(torch.get_default_device()), torch.get_num_threads(), torch.backends.mkldnn.enabled,
            torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
            torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled()]


@functools.cache  # of some three thousand modules for each key, whose real paths take most of its time
def _is_package(file: str) -> bool:
    return os.path.realpath(file).startswith(PACKAGES) or file.startswith("<frozen")


def _file_of(thing: Any) -> str | None:
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return getattr(module, "__file__", None)


class _Key:
    """Hashes values and what they refer to, each object once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[tuple[int, ...], tuple[int, Any]] = {}  # holds the objects, so that no two have one id

    def text(self, *parts: Any) -> None:
        self.hash.update(repr(parts).encode())

    def first(self, thing: Any, *place: int) -> bool:
        identity = (id(thing), *place)
        new = identity not in self.seen
        self.text("object", self.seen.setdefault(identity, (len(self.seen), thing))[0])
        return new

    def stamp(self, file: str | None) -> None:
        if file is None or not os.path.exists(file):
            raise Unknown(f"code without a file ({file})")
        status = os.stat(file)
        self.text(os.path.realpath(file), status.st_size, status.st_mtime_ns)

    def files_of_users(self) -> None:
        """Code may be reached through what a package keeps of it, such as a registry of functions."""
        if not hasattr(sys.modules["__main__"], "__file__"):
            raise Unknown("an interactive session")
        files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)) and not _is_package(file)}
        for file in sorted(set(map(os.path.realpath, files))):
            if os.path.exists(file):
                self.stamp(file)

    def add(self, value: Any) -> None:
        if isinstance(value, SIMPLE):
            self.text(type(value).__name__, value)
        elif isinstance(value, NATIVE):
            self.text(str(value))
        elif self.first(value):
            self.new(value)

    def new(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensor(value)
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, type):
            self.type(value)
        elif isinstance(value, types.ModuleType):
            self.module(value, ())
        elif isinstance(value, types.MethodType):
            self.all((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            self.all((value.func, value.args, value.keywords))
        elif isinstance(value, (property, classmethod, staticmethod, functools.cached_property)):
            self.all([getattr(value, name, None) for name in ("fget", "fset", "func", "__func__")])
        elif isinstance(value, (list, tuple, dict, types.MappingProxyType)):
            self.type(type(value))
            self.all(value if isinstance(value, (list, tuple)) else value.items())
        elif isinstance(value, (set, frozenset)):
            if not all(isinstance(item, SIMPLE) for item in value):
                raise Unknown("a set of objects")
            self.text(sorted(map(repr, value)))
        else:
            self.object(value)

    def all(self, values: Iterable[Any]) -> None:
        values = list(values)
        self.text(len(values))
        for value in values:
            self.add(value)

    def tensor_type(self, tensor: torch.Tensor) -> None:
        self.text(type(tensor).__name__, tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)

    def tensor(self, tensor: torch.Tensor) -> None:
        """Values that code reads as they are."""
        self.tensor_type(tensor)
        if tensor.is_meta or tensor.numel() * tensor.element_size() > LARGEST:
            raise Unknown(f"the values of a tensor of shape {list(tensor.shape)} that is no parameter or buffer")
        self.hash.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    def object(self, value: Any) -> None:
        """Takes in what an object of a class written in Python keeps: its __dict__ and slots. A data class's field counts without its annotation."""
        slots = _slots(type(value))
        if not (slots or hasattr(value, "__dict__")) or _file_of(type(value)) is None:
            raise Unknown(f"a {type(value).__module__}.{type(value).__name__}")
        self.type(type(value))
        self.all((name, getattr(value, name)) for name in slots if hasattr(value, name) and not (name == "type" and isinstance(value, dataclasses.Field)))
        for name, attribute in getattr(value, "__dict__", {}).items():
            self.text(name)
            if isinstance(value, torch.nn.Module) and name in ("_parameters", "_buffers"):
                for key, tensor in attribute.items():
                    self.text(key, tensor is None)
                    if tensor is not None and self.first(tensor):
                        self.tensor_type(tensor)
            else:
                self.add(attribute)

    def type(self, cls: type) -> None:
        for base in cls.__mro__:
            self.text(base.__module__, base.__qualname__)
            file = _file_of(base)
            if file is None and base.__module__ != "builtins" and base.__module__ not in sys.builtin_module_names:
                raise Unknown(f"the class {base.__qualname__}, which has no file")
            if file is None or not self.first(base, 1):
                continue
            if _is_package(file):
                self.stamp(file)
                continue
            for name, value in vars(base).items():
                if name not in SKIPPED:
                    self.text(name)
                    self.add(value)

    def function(self, function: types.FunctionType) -> None:
        """A function of a package is its file; what a user's wraps, and what it takes by default, counts for both."""
        self.text(function.__module__, function.__qualname__)
        if _is_package(function.__code__.co_filename):
            self.stamp(function.__code__.co_filename)
        else:
            self.code(function.__code__, function.__globals__)
        self.all((function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None)))
        self.all(cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell))

    def code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        self.text(code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant, names)
            else:
                self.text(repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant))
        for name in code.co_names:
            self.text(name)
            if name in names:
                value = names[name]
                self.module(value, code.co_names) if isinstance(value, types.ModuleType) else self.add(value)
            elif name in sys.modules and not hasattr(builtins, name):
                self.module(sys.modules[name], code.co_names)

    def module(self, module: types.ModuleType, names: tuple[str, ...]) -> None:
        """Code reads of a module what it names; what was put into a package by others counts as theirs."""
        self.text(module.__name__)
        if not self.first(module, *map(id, names)):
            return
        file = getattr(module, "__file__", None)
        inside = file is None or _is_package(file)
        if not inside:
            self.stamp(file)
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, types.ModuleType):
                self.module(value, names)
            elif value is not None and (not inside or _is_users(value)):
                self.add(value)


def _slots(cls: type) -> list[str]:
    """The names of the slots of `cls` and its bases, as they are read: a private one's is mangled."""
    found: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in found if name not in SKIPPED]


def _is_users(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not _is_package(value.__code__.co_filename)


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is _is_empty
    except ValueError:
        return True
