# SPDX-License-Identifier: Apache-2.0
"""A training loop goes on from a checkpoint: to the bit under the same plan, by the same numbers under another one; what does not fit is refused.

usage: checkpoints_test.py
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

import kept_exports  # noqa: F401
import numpy as np
import torch
import torch.nn as nn
from small_modules import Case, Images, Model, relative, seeded, texts, token_loss
from torch.nn import functional

import penstock
from penstock import PenstockError, checkpoints, saved
from penstock.plain_values import packed, unpacked


class Folder(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "checkpoints"


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


class Loop:
    """A trainer with a scheduler and shuffled data, whose model drops elements."""

    def __init__(self, optimizer=adamw, dtype=torch.float64, batches=(), **plan):
        self.module = seeded(Model, layers=2, dropout=0.2, dtype=dtype)
        self.optimizer = optimizer(self.module)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [
            torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 3), torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], 0.5)], [3])
        torch.manual_seed(1)
        samples = [tuple(tensor[0] for tensor in texts(1)) for _ in range(40)]
        self.data = penstock.resumable(torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True))
        self.step = penstock.trainer(self.module, texts(), loss=token_loss, optimizer=self.optimizer, microbatches=4, **plan)
        self.parts = {"scheduler": self.scheduler, "data": self.data}

    def run(self, steps, at=lambda number: None):
        """Goes on until so many steps are done, and calls at(number) behind each; losses."""
        losses = []
        while self.step.steps < steps:
            for batch in self.data:
                losses.append(self.step(batch).item())
                self.scheduler.step()
                at(self.step.steps)
                if self.step.steps == steps:
                    break
        return losses


class GoesOn(Folder):
    def whole(self, optimizer=adamw, save=7, **given):
        """A run of 12 steps over epochs of 5, saved behind one of them."""
        loop = Loop(optimizer, **given)
        losses = loop.run(12, lambda number: number == save and loop.step.save(self.folder, **loop.parts))
        return loop, losses

    def resumed(self, **given):
        torch.manual_seed(77)  # another process has drawn other numbers
        loop = Loop(**given)
        self.assertEqual(penstock.resume(self.folder, loop.step, **loop.parts), 7)
        return loop, loop.run(12)

    def test_to_the_bit(self):
        for optimizer in (adamw, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), lambda m: torch.optim.NAdam(m.parameters(), lr=1e-2)):
            whole, losses = self.whole(optimizer)
            again, found = self.resumed(optimizer=optimizer)
            self.assertEqual(found, losses[7:])
            self.assertEqual(again.step.steps, 12)
            self.assertEqual(again.optimizer.param_groups[0]["lr"], whole.optimizer.param_groups[0]["lr"])
            for name, value in whole.step.state_dict().items():
                self.assertTrue(torch.equal(again.step.state_dict()[name], value), name)
            whole.step.sync()
            with self.assertWarnsRegex(UserWarning, "which has done 12 steps"):
                again.module.state_dict()

    def test_bf16(self):
        whole, losses = self.whole(dtype=torch.bfloat16)
        again, found = self.resumed(dtype=torch.bfloat16)
        self.assertEqual(found, losses[7:])

    def test_under_other_plans(self):
        whole, losses = self.whole()
        for plan in ({"actors": 1, "tensor": 2}, {"schedule": "zb-h1"}, {"mesh": {"pipe": 2, "data": 2}, "zero": 3},
                     {"schedule": "interleaved-1f1b", "chunks": 2, "split": ["layers.0", "layers.1", "head"]}):
            again, found = self.resumed(**plan)
            torch.testing.assert_close(torch.tensor(found), torch.tensor(losses[7:]), rtol=1e-10, atol=1e-10)
            self.assert_alike(again.step.state_dict(), whole.step.state_dict(), 1e-10)
            for i, entry in whole.step.optimizer_state_dict()["state"].items():
                self.assertLess(relative(again.step.optimizer_state_dict()["state"][i]["exp_avg"], entry["exp_avg"]), 1e-10)

    def test_from_pieces(self):
        whole, losses = self.whole(data=2, zero=3)
        again, found = self.resumed()
        torch.testing.assert_close(torch.tensor(found), torch.tensor(losses[7:]), rtol=1e-10, atol=1e-10)
        self.assert_alike(again.step.state_dict(), whole.step.state_dict(), 1e-10)

    def test_running_statistics_and_frozen_parameters(self):
        def made():
            module = seeded(Images, dtype=torch.float64)
            module.register_buffer("hidden", torch.zeros(2, dtype=torch.float64), persistent=False)
            module.layers[8].bias.requires_grad_(False)
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
            return penstock.trainer(module, batch, loss=functional.cross_entropy, optimizer=optimizer, microbatches=4, split=["layers.3"])
        batch = torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.randint(5, (16,))
        whole = made()
        whole(batch)
        self.assertEqual(whole.save(self.folder), self.folder / "step-1.safetensors")
        whole(batch)
        again = made()
        self.assertEqual(penstock.resume(self.folder, again), 1)
        again(batch)
        for name, value in whole.state_dict().items():
            self.assertTrue(torch.equal(again.state_dict()[name], value), name)

    def test_begin_keep_and_at(self):
        loop = Loop()
        self.assertEqual(penstock.resume(self.folder, loop.step, begin=True, **loop.parts), 0)
        loop.run(5, lambda number: loop.step.save(self.folder, keep=3, **loop.parts))
        self.assertEqual(sorted(os.listdir(self.folder)), ["step-3.safetensors", "step-4.safetensors", "step-5.safetensors"])
        again = Loop()
        self.assertEqual(penstock.resume(self.folder, again.step, at=4, begin=True, **again.parts), 4)
        self.assertEqual((again.step.steps, again.scheduler.last_epoch, again.data.taken), (4, 4, 4))
        with self.assertRaisesRegex(PenstockError, "has a checkpoint of step 5, and the trainer has done 4\n.*\n  hint: penstock.resume"):
            again.step.save(self.folder, **again.parts)
        for path in self.folder.iterdir():
            self.assertEqual(path.stat().st_mode & 0o111, 0)

    def test_for_evaluation(self):
        """A trainer without an optimizer takes the parameters."""
        loop = Loop()
        loop.run(2)
        loop.step.save(self.folder)
        module, batch = seeded(Model, layers=2, dropout=0.2), texts()
        step = penstock.trainer(module, batch, loss=token_loss, microbatches=4)
        self.assertEqual(penstock.resume(self.folder, step), 2)
        self.assertTrue(torch.equal(step.evaluate(batch)["loss"], loop.step.evaluate(batch)["loss"]))

    def test_a_crash_in_the_middle_leaves_the_last_one(self):
        """The process ends while the second one is written; what it left is removed by the next one."""
        script = textwrap.dedent("""
            import os, sys, torch, evaluate, penstock
            from small_modules import Model, seeded, texts, token_loss
            from penstock import saved
            module = seeded(Model, layers=1)
            step = penstock.trainer(module, texts(), loss=token_loss, optimizer=torch.optim.AdamW(module.parameters()), microbatches=2)
            step(texts())
            step.save(sys.argv[1], keep=1)
            step(texts())
            real, seen = saved.checksum_of, []
            def ends(*given):
                seen.append(1)
                return real(*given) if len(seen) < 5 else os._exit(9)
            saved.checksum_of = ends
            step.save(sys.argv[1], keep=1)
        """)
        done = subprocess.run([sys.executable, "-c", script, self.folder], env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"})
        self.assertEqual(done.returncode, 9)
        names = sorted(os.listdir(self.folder))
        self.assertEqual((names[0], len(names)), ("step-1.safetensors", 2))
        module = seeded(Model, layers=1)
        step = penstock.trainer(module, texts(), loss=token_loss, optimizer=torch.optim.AdamW(module.parameters()), microbatches=2)
        self.assertEqual(penstock.resume(self.folder, step), 1)
        step(texts())
        step.save(self.folder, keep=1)
        self.assertEqual(os.listdir(self.folder), ["step-2.safetensors"])


class Refused(Folder):
    def setUp(self):
        super().setUp()
        self.loop = Loop()
        self.loop.run(1, lambda number: self.loop.step.save(self.folder, **self.loop.parts))
        self.path = self.folder / "step-1.safetensors"

    def refused(self, text, step=None, **given):
        step = step or self.loop.step
        before = step.state_dict()
        with self.assertRaisesRegex(PenstockError, text):
            penstock.resume(self.folder, step, **{**self.loop.parts, **given})
        for name, value in step.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_another_model_or_optimizer(self):
        def trainer(module, optimizer=adamw, **given):
            return penstock.trainer(module, texts(), loss=token_loss, optimizer=optimizer(module), microbatches=4, **given)
        self.refused(r'is of another model\n  "layers.2.norm.weight", float64\[8\], is not in the checkpoint\n(  .*\n){3}  and 2 more\n  hint: .*the Model that was saved',
                     trainer(seeded(Model, layers=3)))
        self.refused(r'"layers.1.norm.weight", float64\[8\], is in the checkpoint alone', trainer(seeded(Model, layers=1)))
        self.refused(r'"embed.weight" is float64\[19, 8\] in the checkpoint, float64\[19, 16\] here', trainer(seeded(Model, layers=2, width=16)))
        self.refused(r'"embed.weight" is float64\[19, 8\] in the checkpoint, float32\[19, 8\] here', trainer(seeded(Model, layers=2, dtype=torch.float32)))
        two = seeded(Model, layers=2)
        self.refused(r'is of another optimizer\n  "first:embed.weight", .*, is in the checkpoint alone\n(.*\n)+  hint: it was saved with AdamW, and this trainer has SGD',
                     trainer(two, lambda m: torch.optim.SGD(m.parameters(), lr=0.1)))
        self.refused("state has weight_decay = 0.01, the trainer's program 0.5", trainer(two, lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.5)))
        self.refused("was drawn with seed=0, this trainer has seed=3\n  hint: penstock.trainer\\(..., seed=0\\)", trainer(two, seed=3))

    def test_other_parts(self):
        self.refused(r'has no "ema"\n  its parts: scheduler, data\n  hint: step.save\(folder, ema=ema\) writes it', ema=self.loop.scheduler)
        self.refused(r'has no "shedule".*\n.*\n  hint: did you mean "scheduler"\?', shedule=self.loop.scheduler)
        parts = {name: part for name, part in self.loop.parts.items() if name != "data"}
        with self.assertRaisesRegex(PenstockError, 'has a state of "data", which nothing takes\n.*\n  hint: penstock.resume\\(..., data=data\\), or data=None to leave it'):
            penstock.resume(self.folder, self.loop.step, **parts)
        self.assertEqual(penstock.resume(self.folder, self.loop.step, data=None, **parts), 1)
        with self.assertRaisesRegex(PenstockError, "loader is a list, which has no state_dict and load_state_dict\n  hint: penstock.resumable"):
            self.loop.step.save(self.folder, loader=[1])
        self.loop.step(texts())
        with self.assertRaisesRegex(PenstockError, '"loop:parts.odd.function" is a builtins.function, which cannot be written'):
            self.loop.step.save(self.folder, odd=mock.Mock(state_dict=lambda: {"function": texts}))
        self.assertEqual(os.listdir(self.folder), ["step-1.safetensors"])

    def test_parts_that_do_not_take_their_state(self):
        """The trainer, the optimizer and the parts before it stay as they were."""
        self.loop.run(3)
        before = copy.deepcopy([self.loop.scheduler.state_dict(), self.loop.data.state_dict(), self.loop.optimizer.param_groups[0]["lr"], self.loop.step.steps])
        again = penstock.resumable(torch.utils.data.DataLoader([1] * 40, batch_size=4))
        self.refused("data: the state is of a loader with batch_size=8, and this one has batch_size=4", data=again)
        self.refused("data is a list, which has no state_dict", data=[1])
        self.refused('the state of scheduler of a SequentialLR, and this one is a ExponentialLR\n  hint: make it a SequentialLR, or scheduler=None',
                     scheduler=torch.optim.lr_scheduler.ExponentialLR(self.loop.optimizer, 0.5))

        class Resumable:
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                if state:
                    raise KeyError("position")
        self.refused("data, a Resumable, does not take its state of the checkpoint: KeyError: 'position'\n  hint: make it as the run did", data=Resumable())
        after = [self.loop.scheduler.state_dict(), self.loop.data.state_dict(), self.loop.optimizer.param_groups[0]["lr"], self.loop.step.steps]
        self.assertEqual(str(after), str(before))

    def test_broken_folders(self):
        right = self.path.read_bytes()
        for content, text in ((b"", "this is no safetensors file"), (right[:-1], "spans bytes .*, which its type or the file has not"), (right[:-20] + b"x" * 20, "is not what its checksum says")):
            self.path.write_bytes(content)
            self.refused(text)
        metadata, tensors = saved.read(self.put(right))
        for changed, text in (({"format": "x"}, "is no checkpoint of a trainer"), ({"version": "2"}, "written by a newer penstock: its version is 2, and this one reads up to 1"),
                              ({"training": "{"}, "its texts is no JSON"), ({"training": "{}"}, "malformed"), ({"training": '{"kind": "dict", "items": []}'}, "not those of a checkpoint")):
            saved.write(self.path, metadata | changed, tensors)
            self.refused(text)
        (self.folder / "step-0.safetensors").write_bytes(right)
        self.refused("hint: at=0 goes on from the one before", at=1)
        texts = json.loads(metadata["training"])
        for pair in texts["items"]:
            pair[1] = None if pair[0] == "optimizer" else pair[1]
        saved.write(self.path, metadata | {"training": json.dumps(texts)}, tensors)
        self.refused("this is no state_dict\\(\\) of an optimizer")
        saved.write(self.path, metadata | {"version": "2"}, tensors)
        self.refused("this one reads up to 1\n  hint: install the newer one")
        self.refused("there is no checkpoint of step 4 in .*\n  there are those of 0, 1", at=4)
        with self.assertRaisesRegex(PenstockError, "there is no checkpoint in /nowhere\n  hint: step.save\\(folder\\) writes one; .*begin=True"):
            penstock.resume("/nowhere", self.loop.step)

    def test_a_damaged_newest_is_passed_over(self):
        """As the program does: the newest intact one is taken, the damaged one is named and set aside, so that the run can write its own again."""
        self.loop.run(2)
        self.loop.step.save(self.folder, **self.loop.parts)
        newest = self.folder / "step-2.safetensors"
        newest.write_bytes(newest.read_bytes()[:-20] + b"x" * 20)
        with self.assertLogs("penstock", "WARNING") as logged:
            self.assertEqual(penstock.resume(self.folder, self.loop.step, **self.loop.parts), 1)
        self.assertRegex(logged.output[0], "step-2.safetensors is damaged .*is not what its checksum says.*step-1.safetensors is the newest intact one")
        self.assertEqual(sorted(os.listdir(self.folder)), ["step-1.safetensors", "step-2.safetensors.damaged"])
        self.loop.run(2)
        self.loop.step.save(self.folder, **self.loop.parts)
        self.assertTrue(newest.exists())
        for number in (1, 2):
            (self.folder / f"step-{number}.safetensors").write_bytes(b"")
        self.refused("no checkpoint in .* is intact\n  .*step-2.*\n  .*step-1.*\n  hint: begin anew")

    def put(self, content):
        self.path.write_bytes(content)
        return self.path

    def test_values_that_are_not_finite(self):
        self.loop.step.parameter("layers.0.up.bias")[0] = float("nan")
        with self.assertRaisesRegex(PenstockError, '"layers.0.up.bias" is not finite after step 1: no checkpoint is written'):
            self.loop.step.save(self.folder, **self.loop.parts)
        self.assertEqual(os.listdir(self.folder), ["step-1.safetensors"])

    def test_places_and_numbers(self):
        with self.assertRaisesRegex(PenstockError, "keep=0 is not what keep takes"):
            self.loop.step.save(self.folder, keep=0)
        with self.assertRaisesRegex(PenstockError, "cannot write the checkpoint .*: Not a directory"):
            self.loop.step.save(self.path / "inside")


class PlainValues(unittest.TestCase):
    def test_there_and_back(self):
        value = {"a": [1, 2.5, None, True, "x", b"\0\xff"], 3: (1, (2,)), "inf": float("inf"), "big": 2**100, ("k", 1): Counter([4, 4]), "np": np.float64(0.1),
                 "t": torch.arange(3, dtype=torch.int16), "n": np.arange(4, dtype=np.uint32).reshape(2, 2), "e": np.zeros((0, 3)), "nested": {"1": torch.ones(1), 1: torch.zeros(1)}}
        tensors = {}
        text = json.dumps(packed(value, "v", tensors))
        found = unpacked(json.loads(text), tensors)
        self.assertEqual(list(found), list(value))
        for name in ("a", 3, "inf", "big", ("k", 1), "np"):
            self.assertEqual((found[name], type(found[name])), (value[name], type(value[name]) if name != "np" else float))
        self.assertTrue(torch.equal(found["t"], value["t"]))
        self.assertEqual((found["n"].tolist(), found["n"].dtype, found["e"].shape), (value["n"].tolist(), np.uint32, (0, 3)))
        self.assertEqual((found["nested"]["1"].item(), found["nested"][1].item()), (1, 0))

    def test_what_cannot_be_written(self):
        for value in (object(), {1, 2}, torch.ones(2, device="meta"), np.array([object()])):
            with self.assertRaisesRegex(PenstockError, '"v" is a .*, which cannot be written'):
                packed(value, "v", {})

    def test_malformed(self):
        for value in ({}, {"kind": "x"}, {"kind": "tensor", "name": "t"}, {"kind": "dict", "items": [1]}, {"kind": "dict", "items": [[[], 1]]}, {"kind": "array", "name": "a", "dtype": "O", "shape": []},
                      {"kind": "bytes", "text": "*"}):
            with self.assertRaises(PenstockError, msg=str(value)):
                unpacked(value, {"a": torch.zeros(8, dtype=torch.uint8)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
