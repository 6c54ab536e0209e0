"""Exports that are kept in a folder are found again only where they would be made the same.

usage: cache_test.py
"""

import contextlib
import dataclasses
import importlib
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
import weakref
from pathlib import Path

import evaluate  # noqa: F401  (it finds the package)
import torch
import torch.nn as nn
from torch.nn import functional as F

import penstock
from penstock.cache import Unknown, export_key

FACTOR, CHOICES = 2.0, {"twice": True}


def scaled(x):
    return F.hardtanh(x) * FACTOR if CHOICES["twice"] else x


class Model(nn.Module):
    def __init__(self, act=F.relu, width=4):
        super().__init__()
        self.layer, self.norm, self.act, self.times = nn.Linear(4, width), nn.BatchNorm1d(width), act, 2
        self.table = torch.arange(3.0)

    def forward(self, x, flag=False):
        for _ in range(self.times):
            x = scaled(self.act(x))
        return self.norm(self.layer(x)).mean() + self.table.sum()


def key(module=None, args=(), kwargs=None, loss=None, options=()):
    module = module or Model()
    return export_key(module, loss, (args or (torch.ones(2, 4),), kwargs or {}, None), options)


@contextlib.contextmanager
def changed(holder, name, value):
    before = holder[name] if isinstance(holder, dict) else getattr(holder, name)
    assign = dict.__setitem__ if isinstance(holder, dict) else setattr
    assign(holder, name, value)
    try:
        yield
    finally:
        assign(holder, name, before)


def closure(number):
    return lambda x: x * number


class Keys(unittest.TestCase):
    def test_equal_where_nothing_differs(self):
        torch.manual_seed(0)
        first = key()
        torch.manual_seed(1)
        self.assertEqual(first, key(args=(torch.zeros(2, 4),)))  # values are not read

    def test_attributes_and_arguments(self):
        model = Model()
        model.times = 3
        table = Model()
        table.table[0] = 5
        frozen = Model()
        frozen.layer.weight.requires_grad_(False)
        patched = Model()
        patched.layer.forward = lambda x: x
        keys = [key(), key(model), key(table), key(frozen), key(patched), key(Model().eval()), key(Model().double()), key(Model(width=5)),
                key(Model(act=torch.tanh)), key(Model(act=closure(2))), key(Model(act=closure(3))), key(args=(torch.ones(3, 4),)),
                key(args=(torch.ones(2, 4, dtype=torch.float64),)), key(kwargs={"flag": True}), key(loss=F.mse_loss), key(loss=nn.MSELoss()),
                key(loss=lambda y: y), key(loss=lambda y: y + 1), key(options=(True,)), key(options=({"x": (0,)},))]
        self.assertEqual(len(set(keys)), len(keys))

    def test_what_code_reads(self):
        keys = [key()]
        for holder, name, value in ((globals(), "FACTOR", 3.0), (CHOICES, "twice", False), (globals(), "scaled", lambda x: x),
                                    (F, "hardtanh", lambda x: x), (Model, "forward", lambda self, x: x.sum())):
            with changed(holder, name, value):
                keys.append(key())
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(keys[0], key())

    def test_data_classes_and_slots(self):
        """Their fields and parameters are objects of the standard library with slots."""
        def settings(factor, private=0, **options):
            @dataclasses.dataclass(**options)
            class Settings:
                factor: float
                names: list[int] | None = dataclasses.field(default_factory=list)

            class Slotted:
                __slots__ = ("times", "__private")

                def __init__(self):
                    self.times, self.__private = 2, private

            model = Model()
            model.settings, model.slotted = Settings(factor), Slotted()
            return model
        keys = [key(settings(2.0)), key(settings(3.0)), key(settings(2.0, private=1)), key(settings(2.0, frozen=True)), key(settings(2.0, slots=True))]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(key(settings(2.0)), keys[0])

    def test_settings(self):
        keys = [key()]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            keys.append(key())
        with torch.backends.mkldnn.flags(enabled=False):
            keys.append(key())
        self.assertEqual(len(set(keys)), len(keys))

    def test_files(self):
        """A function that only a package's registry knows."""
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            try:
                file = Path(folder) / "a_users_module.py"
                keys = []
                for body in ("1", "x + 1"):
                    file.write_text(f"def f(x):\n    return {body}\n")
                    importlib.invalidate_caches()
                    sys.modules.pop("a_users_module", None)
                    importlib.import_module("a_users_module")
                    keys.append(key())
                self.assertNotEqual(*keys)
            finally:
                sys.path.remove(folder)
                sys.modules.pop("a_users_module", None)

    def test_what_no_key_can_say(self):
        model = Model()
        model.other = weakref.ref(model)
        with self.assertRaisesRegex(Unknown, "a weakref.ReferenceType"):
            key(model)
        with self.assertRaisesRegex(Unknown, r"the values of a tensor of shape \[2\]"):
            key(Model(act=closure(torch.ones(2, device="meta"))))


class Cache(unittest.TestCase):
    def test_found_again(self):
        with tempfile.TemporaryDirectory() as folder:
            first = penstock.export(Model(), (torch.ones(2, 4),), cache=Path(folder) / "new")
            (file,) = (Path(folder) / "new").iterdir()
            written = file.stat().st_mtime_ns
            module = Model()
            again = penstock.export(module, (torch.ones(2, 4),), cache=Path(folder) / "new")
            self.assertEqual(len(list(file.parent.iterdir())), 1)
            self.assertEqual((again.header, again.text, again.notes, list(again.state)), (first.header, first.text, first.notes, list(first.state)))
            self.assertEqual(again.state["layer.weight"].data_ptr(), module.layer.weight.data_ptr())
            self.assertEqual(again.state["constant.0"].tolist(), [0, 1, 2])
            self.assertEqual(file.stat().st_mtime_ns, written)
            file.write_bytes(b"damaged")
            self.assertEqual(penstock.export(Model(), (torch.ones(2, 4),), cache=Path(folder) / "new").text, first.text)
            self.assertGreater(file.stat().st_size, 1000)

    def test_in_another_process(self):
        script = textwrap.dedent("""
            import sys, time, evaluate, torch, penstock
            from models import make
            module, args = make("Norms", torch.float32)
            penstock.export(module, args, cache=sys.argv[1])
        """)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "script.py"
            file.write_text(script)
            for seed in ("1", "2"):
                subprocess.run([sys.executable, file, Path(folder) / "kept"], check=True,
                               env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)})
            self.assertEqual(len(list((Path(folder) / "kept").iterdir())), 1)

    def test_not_kept(self):
        model = Model()
        model.other = weakref.ref(model)
        with tempfile.TemporaryDirectory() as folder:
            exported = penstock.export(model, (torch.ones(2, 4),), cache=folder)
            self.assertEqual(exported.notes, ["not kept in the cache, as no key can say what it depends on: a weakref.ReferenceType"])
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
