# SPDX-License-Identifier: Apache-2.0
"""Exports that are kept in a folder are found again only where they would be made the same; nothing in a file of others is run.

usage: cache_test.py
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import unittest
import weakref
from pathlib import Path
from unittest import mock

import evaluate  # noqa: F401  (it finds the package)
import torch
import torch.nn as nn
from torch.nn import functional as F

import penstock
from penstock import PenstockError, kept, saved
from penstock.cache import Unknown, export_key
from penstock.expressions import size_of
from penstock.pretrained import Folder

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


class Branch(nn.Module):
    def forward(self, x):
        return x.sum() if x.mean() > 0 else x.mean()


class Small(nn.Module):
    """Its export has symbols, conditions, expressions and a constant."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        x = self.layer(x[:, :x.shape[1] // 2 * 2] * torch.tensor([1.0, 2.0]))
        return x.mean() * 2 if x.shape[1] % 3 == 0 and x.shape[0] < x.shape[1] else x.mean()


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
            self.assertEqual((file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777), (0o700, 0o600))

    def test_a_wrong_entry_is_made_anew(self):
        """One that is damaged, of another key, without checksums or that others may write to; whoever shares a folder may have put it there."""
        with tempfile.TemporaryDirectory() as folder:
            export = functools.partial(penstock.export, Model(), (torch.ones(2, 4),), cache=folder)
            first = export()
            (file,) = Path(folder).iterdir()
            right = file.read_bytes()
            other = json.loads(right[8:8 + int.from_bytes(right[:8], "little")])["__metadata__"]["key"].encode()
            changed = bytearray(right)
            changed[-2] ^= 1
            for content, mode, note in ((b"damaged", 0o600, "this is no safetensors file"), (changed, 0o600, "is not what its checksum says"),
                                        (sealed(edited(right, "key", "another")), 0o600, "made of what another key says"),
                                        (edited(right, "checksums", None), 0o600, "it has no checksums"),
                                        (right.replace(other, other[::-1]), 0o600, "its header is not what its checksum says"),
                                        (right, 0o620, "other users may write to it \\(mode 620\\)")):
                file.write_bytes(content)
                file.chmod(mode)
                again = export()
                self.assertEqual((again.header, again.text), (first.header, first.text))
                self.assertRegex("".join(again.notes), "^exported anew, not taken from the cache: .*" + note)
                self.assertEqual((file.read_bytes(), file.stat().st_mode & 0o777, export().notes), (right, 0o600, []))
            os.chmod(folder, 0o777)
            with self.assertRaisesRegex(PenstockError, r"cannot keep exports in .*: other users may write to it \(mode 777\)\n  hint: for each user"):
                export()
            os.chmod(folder, 0o700)
            if os.getuid() == 0:
                os.chown(folder, 12345, -1)
                with self.assertRaisesRegex(PenstockError, "it belongs to another user \\(number 12345\\)"):
                    export()
                os.chown(folder, 0, -1)

    def test_what_is_no_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            export = functools.partial(penstock.export, Model(), (torch.ones(2, 4),))
            cache = Path(folder) / "cache"
            export(cache=cache)
            (file,) = cache.iterdir()
            file.unlink()
            file.mkdir()
            (Path(folder) / "file").touch()
            for place, reason in ((cache, "Is a directory"), (Path(folder) / "file", "File exists"), (Path("/proc/nothing/cache"), "No such file or directory")):
                with self.assertRaisesRegex(PenstockError, f"cannot keep exports in {place}: .*{reason}\n  hint: cache=, or the environment's PENSTOCK_CACHE"):
                    export(cache=place)

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

    def test_where_it_lies(self):
        """The argument, PENSTOCK_CACHE, and the user's own folder; "off" and nothing are none."""
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "home"
            export = functools.partial(penstock.export, Model(), (torch.ones(2, 4),))

            def places(cache=None, **environment):
                before = {path for path in Path(folder).rglob("*.safetensors")}
                with mock.patch.dict(os.environ, environment):
                    for name in ("PENSTOCK_CACHE", "XDG_CACHE_HOME", "HOME"):
                        if name not in environment:
                            os.environ.pop(name, None)
                    found = export(cache=cache)
                self.assertEqual(found.notes, [])
                return [str(path.parent.relative_to(folder)) for path in Path(folder).rglob("*.safetensors") if path not in before]
            self.assertEqual(places(HOME=str(own)), ["home/.cache/penstock/exports"])
            self.assertEqual((own / ".cache/penstock/exports").stat().st_mode & 0o777, 0o700)
            self.assertEqual(places(HOME=str(own)), [])
            self.assertEqual(places(HOME=str(own), XDG_CACHE_HOME=f"{folder}/xdg"), ["xdg/penstock/exports"])
            for off in ("", "off"):
                self.assertEqual(places(XDG_CACHE_HOME=f"{folder}/none", PENSTOCK_CACHE=off), [])
                self.assertEqual(places(off, XDG_CACHE_HOME=f"{folder}/none"), [])
            self.assertEqual(places(XDG_CACHE_HOME=f"{folder}/none", PENSTOCK_CACHE=f"{folder}/named"), ["named"])
            self.assertEqual(places(f"{folder}/given", PENSTOCK_CACHE=f"{folder}/named"), ["given"])
            # One that Penstock chose and that cannot be used is done without; one that is named is refused.
            (Path(folder) / "file").touch()
            self.assertEqual(places(XDG_CACHE_HOME=f"{folder}/file"), [])
            (Path(folder) / "open/penstock/exports").mkdir(parents=True)
            (Path(folder) / "open/penstock/exports").chmod(0o777)
            with self.assertLogs("penstock", "INFO") as kept:
                self.assertEqual(places(XDG_CACHE_HOME=f"{folder}/open"), [])
            self.assertIn("exports are not kept: cannot keep exports in", "".join(kept.output))
            with self.assertRaisesRegex(PenstockError, "other users may write to it"):
                places(PENSTOCK_CACHE=f"{folder}/open/penstock/exports")

    def test_what_is_not_used_goes(self):
        with tempfile.TemporaryDirectory() as folder:
            def export(width):
                penstock.export(Model(width=width), (torch.ones(2, 4),), cache=folder)
                new = set(Path(folder).iterdir()) - set(files.values())
                files.update({width: path for path in new})
                return new
            files = {}
            for width in (4, 5, 6):
                self.assertEqual(len(export(width)), 1)
                os.utime(files[width], ns=(width, width))  # in that order, long ago
            stray = Path(folder) / "mine.safetensors"
            stray.touch()
            left = Path(f"{files[4]}.123.part")
            left.touch()
            os.utime(left, ns=(1, 1))
            self.assertEqual(export(4), {stray, left})  # 5 is now the one that was not used for longest
            files.pop(4, None)
            size = max(path.stat().st_size for path in Path(folder).iterdir())
            with mock.patch.dict(os.environ, {"PENSTOCK_CACHE_LIMIT": str(3 * size + 100)}):
                export(7)
            self.assertEqual([files[5].exists(), files[6].exists(), left.exists(), stray.exists()], [False, True, False, True])
            with mock.patch.dict(os.environ, {"PENSTOCK_CACHE_LIMIT": "1KB"}):
                export(8)
            self.assertEqual(len(list(Path(folder).iterdir())), 2)  # the last one stays
            for text in ("much", "-1", "0"):
                with mock.patch.dict(os.environ, {"PENSTOCK_CACHE_LIMIT": text}), self.assertRaisesRegex(PenstockError, f"PENSTOCK_CACHE_LIMIT={text} is no size\n  hint: bytes, or"):
                    export(4)

    def test_several_processes_at_once(self):
        """They write, find and remove each other's entries; each gets its export."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"PENSTOCK_CACHE_LIMIT": "20KB"}):
            texts = {width: penstock.export(Model(width=width), (torch.ones(2, 4),), cache="off").text for width in (2, 3, 4)}
            made = {width: penstock.export(Model(width=width), (torch.ones(2, 4),), cache="off") for width in texts}

            def worker(seed):
                rng = random.Random(seed)
                for _ in range(60):
                    width = rng.choice((2, 3, 4))
                    own = {name: tensor for name, tensor in made[width].state.items() if not name.startswith("constant")}
                    found = kept.kept_or_made(kept.Place(Path(folder), True), f"{width:064x}", own, lambda width=width: made[width])
                    assert found.text == texts[width] and not found.notes, found.notes
            processes = []
            for seed in range(4):
                process = os.fork()
                if process == 0:
                    try:
                        worker(seed)
                        os._exit(0)
                    except BaseException as error:
                        os.write(2, f"{type(error).__name__}: {error}\n".encode())
                        os._exit(1)
                processes.append(process)
            self.assertEqual([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes], [0] * 4)
            self.assertLessEqual(sum(path.stat().st_size for path in Path(folder).iterdir()), 40_000)
            self.assertGreater(len(list(Path(folder).iterdir())), 0)

    def test_not_kept(self):
        model = Model()
        model.other = weakref.ref(model)
        with tempfile.TemporaryDirectory() as folder:
            exported = penstock.export(model, (torch.ones(2, 4),), cache=folder)
            self.assertEqual(exported.notes, ["not kept in the cache, as no key can say what it depends on: a weakref.ReferenceType"])
            self.assertEqual(os.listdir(folder), [])

    def test_refusals_name_module_and_line(self):
        """Also where the caller handles an error of its own."""
        module = nn.Sequential(nn.Linear(4, 4), Branch())
        with tempfile.TemporaryDirectory() as folder:
            for cache in (folder, None):
                try:
                    raise FileNotFoundError("of the caller")
                except FileNotFoundError:
                    with self.assertRaisesRegex(PenstockError, r"depend on the values of tensors.*\n  in module 1\n  .*cache_test.py:\d+: return x.sum"):
                        penstock.export(module, (torch.ones(2, 4),), loss=torch.sum, cache=cache)


def header_of(content):
    """The header of a file of safetensors, with its metadata's texts as values where they are JSON; and the tensors' bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    texts = header["__metadata__"]
    header["__metadata__"] = {name: text if name in ("graph", "key") else json.loads(text) for name, text in texts.items()}
    return header, content[end:]


def file_of(header, data):
    if isinstance(metadata := header.get("__metadata__"), dict):
        texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in metadata.items()}
        header = {**header, "__metadata__": texts}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def edited(content, name, value):
    """The file with another value of its metadata; None: without it."""
    header, data = header_of(content)
    header["__metadata__"] |= {name: value}
    if value is None:
        del header["__metadata__"][name]
    return file_of(header, data)


def sealed(content):
    """The file with the checksum that its metadata have, as whoever writes a hostile one would make it."""
    header, data = header_of(content)
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in header["__metadata__"].items()}
    return edited(content, "checksums", {**header["__metadata__"]["checksums"], "metadata": saved.checksum_of_metadata(texts)})


JUNK = (None, True, -1, 0, 3, 2**62, 2**70, 1e300, "", "x", "s0 //", "9" * 5000, "(" * 3000, "-" * 3000, "\ud800", [], [[]], {}, {"a": 1}, ["s0", "<", "s1//0"],
        [1, 2, 3])


def places(value, path=()):
    """All places in a value of JSON, as (container, key)."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        yield value, key
        yield from places(inner)


def mutated(content, rng):
    """One change of a file: cut off, bits flipped, or a value of its header replaced or missing, mostly with the checksum that goes with it."""
    end = 8 + int.from_bytes(content[:8], "little")
    kind = rng.choice(("cut", "flip", "length", "junk", "junk", "junk", "missing"))
    if kind == "cut":
        return content[:rng.choice((0, 1, 7, 8, 9, end - 1, end, end + 1, len(content) - 1, rng.randrange(len(content))))]
    if kind == "length":
        return rng.choice((0, 1, 2, end - 9, end, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little") + content[8:]
    if kind == "flip":
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    header, data = header_of(content)
    holder, name = rng.choice(list(places(header)))
    if kind == "missing":
        del holder[name]
    else:
        holder[name] = rng.choice(JUNK)
    found = file_of(header, data)
    try:
        return sealed(found) if rng.random() < 0.8 else found
    except Exception:  # nothing is left that could be sealed
        return found


class Hostile(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.file = self.folder / "model.safetensors"
        self.exported = penstock.export(Small(), (torch.ones(3, 6, 2),), dynamic=True)
        self.exported.save(self.file)
        self.content = self.file.read_bytes()

    def read_by_all(self, content):
        """The result of load_exported, or its refusal; the other readers may only refuse."""
        self.file.write_bytes(content)
        result = None
        try:
            result = penstock.load_exported(self.file)
            result.fits({name: symbol["example"] for name, symbol in result.header["symbols"].items()})
            text = result.graph()
            if importlib.util.find_spec("penstock._core"):
                from penstock import _core
                from penstock.engine import told
                told(lambda: _core.Exported(json.dumps(result.header), text))
        except PenstockError as error:
            result = error
        with contextlib.suppress(PenstockError):
            for tensor in Folder(self.folder, Small()).values.values():
                tensor.read()
        return result

    def test_code_in_expressions_is_not_run(self):
        mark = self.folder / "ran"
        code = f"__import__('pathlib').Path('{mark}').touch()"
        sizes = ("(lambda: 1)()", "s0.real", "s0 if s1 else s0", "[s0][0]", "s0**s1", "print(1)", "s0\n", "s0;s1", "0x10", "1e3", "True")
        for text in (code, f"s0, {code}", f"max({code})", f"}} or {code} or {{", *sizes):
            conditions = ([text, "<", "s1"], ["s0", "<", text], ["s0", text, "s1"], ["s0", f"< 1 or {code} or", "s1"])
            for part, value in (*(("conditions", [condition]) for condition in conditions), ("samples", text)):
                header = {**self.exported.header, part: value}
                with self.assertRaises(PenstockError) as raised:
                    self.assertIsInstance(found := self.read_by_all(sealed(edited(self.content, "header", header))), PenstockError)
                    raise found
                if part == "conditions":
                    self.assertTrue(any(piece[:200] in str(raised.exception) for piece in value[0]), raised.exception)
                with self.assertRaises(PenstockError):  # of a header that no file has
                    dataclasses.replace(self.exported, header=header).fits({"s0": 3, "s1": 6}) if part == "conditions" else size_of(text, {"s0": 3})
            self.assertFalse(mark.exists())
        for graph in ("{s0 + __import__(s1)}", "{(((((s0}", "{print(s0)}", "{s0//(s1-6)}", "{" + "(" * 4000 + "s0" + ")" * 4000 + "}"):
            with self.assertRaisesRegex(PenstockError, "the size .* cannot be read: "):
                dataclasses.replace(self.exported, text=graph).graph()

    def test_expressions(self):
        """Drawn ones beside what Python makes of them."""
        rng = random.Random(7)

        def drawn(depth):
            kind = rng.randrange(8 if depth else 2)
            if kind < 2:
                return (str(rng.randrange(20)), rng.choice(("s0", "s1")))[kind]
            inner = [drawn(depth - 1) for _ in range(3)]
            return (f"({inner[0]})", f"-{inner[0]}", f"({inner[0]} + {inner[1]})", f"{inner[0]}*{inner[1]} - {inner[2]}",
                    f"({inner[0]})//({inner[1]})%({inner[2]})", f"{rng.choice(('max', 'min'))}({', '.join(inner)})")[kind - 2]
        equal = refused = 0
        for _ in range(400):
            text, sizes = drawn(4), {"s0": rng.randrange(1, 9), "s1": rng.randrange(1, 99)}
            try:
                found = size_of(text, sizes)
            except PenstockError as error:
                self.assertRegex(str(error), "it divides by (0|-)|no 64-bit number")
                refused += 1
                continue
            self.assertEqual(found, eval(text, dict(sizes)), f"{text} of {sizes}")  # the test's own text
            equal += 1
        self.assertGreater(equal, 200)

    def test_mutations(self):
        """Seeded changes of a file: each reader refuses it, or finds what was written."""
        rng = random.Random(41)
        refused = 0
        for i in range(500):
            content = mutated(self.content, rng)
            with self.subTest(i):
                found = self.read_by_all(content)
                refused += isinstance(found, PenstockError)
                if not isinstance(found, PenstockError) and sealed_as(content) == sealed_as(self.content):
                    self.assertEqual((found.text, found.header, list(found.state)), (self.exported.text, self.exported.header, list(self.exported.state)))
                    self.assertTrue(all(torch.equal(found.state[name], tensor) for name, tensor in self.exported.state.items()))
        self.assertGreater(refused, 350)

    def test_hostile_entries_of_a_cache(self):
        rng = random.Random(42)
        kept = self.folder / "kept"
        export = functools.partial(penstock.export, Small(), (torch.ones(3, 6, 2),), dynamic=True, cache=kept)
        first = export()
        (file,) = kept.iterdir()
        content = file.read_bytes()
        same = 0
        for _ in range(24):
            wrong = mutated(content, rng)
            file.write_bytes(wrong)
            again = export()
            if sealed_as(wrong) == sealed_as(content):  # else it has the right checksums of another content, as its owner alone can write them
                same += 1
                self.assertEqual((again.text, again.header), (first.text, first.header))
        self.assertGreater(same, 3)

    def test_indices_of_folders(self):
        """The index says what is read, and what save_pretrained writes."""
        self.file.unlink()
        index = self.folder / "model.safetensors.index.json"
        state = Small().state_dict()
        saved.write(self.folder / "a.safetensors", {}, state)
        outside = self.folder.parent / "outside.safetensors"
        for text in (b"", b"[]", b"\xff", b"{", b"[" * 100000, b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map": {"layer.weight": 3}}',
                     b'{"weight_map": {"layer.weight": ""}}', b'{"weight_map": {"layer.weight": "a"}}', b'{"weight_map": {"layer.weight": "\\u0000.safetensors"}}',
                     json.dumps({"weight_map": {"layer.weight": str(outside)}}).encode(), b'{"weight_map": {"layer.weight": "../outside.safetensors"}}'):
            index.write_bytes(text)
            with self.assertRaises(PenstockError, msg=text[:80]):
                Folder(self.folder, Small())
        index.write_text(json.dumps({"weight_map": dict.fromkeys(state, "a.safetensors")}))
        self.assertEqual(Folder(self.folder, Small()).files, dict.fromkeys(state, "a.safetensors"))

    def test_a_file_that_is_cut_while_it_is_read(self):
        """It would end the process, were it mapped."""
        _, tensors = saved.stored(self.file)
        os.truncate(self.file, len(self.content) - 4)
        with self.assertRaisesRegex(PenstockError, "model.safetensors was changed while it was read"):
            tensors["layer.weight"].read()


def sealed_as(content):
    """The checksums that a file says it has."""
    with contextlib.suppress(Exception):
        return header_of(content)[0]["__metadata__"]["checksums"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
