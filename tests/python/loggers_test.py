# SPDX-License-Identifier: Apache-2.0
"""A step logs its numbers, and they come where they should: TensorBoard itself, and others by the calls that they get.

usage: loggers_test.py
"""

import contextlib
import io
import json
import math
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import kept_exports  # noqa: F401
import torch
from small_modules import Case, Images, Model, autograd, seeded, texts, token_loss
from torch.nn import functional
from zoo import have

import penstock
from penstock import PenstockError, loggers

NAMES = ["loss", "gradient_norm", "learning_rate", "seconds", "samples_per_second", "tokens_per_second", "bubble", "peak_bytes"]


class Kept:
    """The smallest logger."""

    def __init__(self):
        self.seen, self.closed = [], False

    def log(self, step, values):
        self.seen.append((step, values))

    def close(self):
        self.closed = True


class Recorded:
    """A package that writes down each call, by its path."""

    def __init__(self, calls, path="", **results):
        self._calls, self._path, self._results = calls, path, results

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self._calls.append((f"{self._path}{name}", args, kwargs))
            return self._results.get(name)
        return call


def trained(log, **plan):
    module = seeded(Model, layers=2)
    return penstock.trainer(module, texts(), loss=token_loss, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), microbatches=4, log=log, **plan)


class Steps(Case):
    def test_what_a_step_logs(self):
        kept, batch = Kept(), texts()
        step = trained(kept)
        losses = [step(batch).item() for _ in range(2)]
        self.assertEqual([number for number, _ in kept.seen], [1, 2])
        for (_, values), loss in zip(kept.seen, losses, strict=True):
            self.assertEqual(list(values), NAMES)
            self.assertTrue(all(type(value) is float and math.isfinite(value) for value in values.values()), values)
            self.assertEqual((values["loss"], round(values["learning_rate"], 6)), (loss, 0.1))
            self.assertAlmostEqual(values["samples_per_second"] * values["seconds"], 8)
            self.assertAlmostEqual(values["tokens_per_second"] * values["seconds"], 48)
            self.assertTrue(0 <= values["bubble"] < 1 and values["peak_bytes"] > 0, values)

    def test_images_have_no_tokens_and_windows_have_steps(self):
        module, batch, kept = seeded(Images, dtype=torch.float32), (torch.randn(8, 3, 8, 8), torch.randint(5, (8,))), Kept()
        step = penstock.trainer(module, batch, loss=functional.cross_entropy, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), microbatches=4, split=["layers.3"],
                                log=kept)
        step(batch)
        self.assertEqual(list(kept.seen[0][1]), [name for name in NAMES if name != "tokens_per_second"])
        kept.seen.clear()
        step = trained([kept], window=2)
        losses = step(penstock.Window([texts(), texts()]))
        self.assertEqual([(number, values["loss"]) for number, values in kept.seen], [(1, losses[0].item()), (2, losses[1].item())])
        for _, values in kept.seen:
            self.assertAlmostEqual(values["tokens_per_second"] * values["seconds"], 48)

    def test_micro_batches_of_several_lengths(self):
        module, kept = seeded(Model, layers=2), Kept()
        step = penstock.trainer(module, texts(), loss=token_loss, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), microbatches=2, log=kept)
        step(penstock.MicroBatches([texts(2, 3), texts(1, 5)]))
        values = kept.seen[0][1]
        self.assertAlmostEqual(values["samples_per_second"] * values["seconds"], 3)
        self.assertAlmostEqual(values["tokens_per_second"] * values["seconds"], 11)

    def test_what_is_no_logger(self):
        for log, kind in ((3, "int"), ([Kept(), object()], "object")):
            with self.assertRaisesRegex(PenstockError, f"log is a {kind}, which has no log\\(step, values\\) and close\\(\\), and no add_scalar\n  hint: penstock.loggers.Tensor"):
                trained(log)


class Places(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def scalars(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator(str(folder)).Reload()
        return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}

    def test_lines_of_json(self):
        for _ in range(2):
            log = loggers.JsonLines(self.folder / "new" / "log.jsonl")
            log.log(1, {"loss": 0.1, "norm": math.inf})
            log.close()
        lines = (self.folder / "new" / "log.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line) for line in lines], [{"step": 1, "loss": 0.1, "norm": None}] * 2)
        (self.folder / "file").touch()
        loggers.JsonLines(self.folder / "unused").close()
        with self.assertRaisesRegex(PenstockError, "cannot write .*file/log: (Not a directory|File exists)"):
            loggers.JsonLines(self.folder / "file" / "log").log(1, {})

    @unittest.skipUnless(have("tensorboard"), "tensorboard is not installed")
    def test_tensorboard(self):
        from torch.utils.tensorboard import SummaryWriter
        module, batch = seeded(Model, layers=2), texts()
        norms = torch.stack([gradient.norm() for gradient in autograd(module, batch)[1].values()])
        with SummaryWriter(str(self.folder / "writer")) as writer:
            log = loggers.TensorBoard(self.folder / "own")
            step = trained([writer, log])
            losses = [step(batch).item() for _ in range(3)]
            log.close()
        found = self.scalars(self.folder / "own")
        self.assertEqual(found, self.scalars(self.folder / "writer"))
        self.assertEqual(set(found), set(NAMES))
        for (number, value), (expected, loss) in zip(found["loss"], enumerate(losses, 1), strict=True):
            self.assertEqual(number, expected)
            self.assertAlmostEqual(value, loss, delta=1e-6 * loss)
        self.assertAlmostEqual(found["gradient_norm"][0][1], norms.norm().item(), delta=1e-6)

    def test_weights_and_biases(self):
        calls = []
        run = Recorded(calls, "run.")
        log = loggers.WandB(run)
        log.log(1, {"loss": 2.5})
        log.close()  # whoever began it ends it
        self.assertEqual(calls, [("run.log", ({"loss": 2.5},), {"step": 1})])
        calls.clear()
        with mock.patch.dict(sys.modules, {"wandb": Recorded(calls, init=run)}):
            log = loggers.WandB(project="p")
            log.log(1, {"loss": 2.5})
            log.close()
            loggers.WandB(project="unused").close()
        self.assertEqual(calls, [("init", (), {"project": "p"}), ("run.log", ({"loss": 2.5},), {"step": 1}), ("run.finish", (), {})])

    def test_mlflow(self):
        for active, around in ((None, True), ("mine", False)):
            calls = []
            with mock.patch.dict(sys.modules, {"mlflow": Recorded(calls, active_run=active)}):
                log = loggers.MLflow(run_name="r")
                log.log(1, {"loss": 2.5})
                log.close()
            made = [("active_run", (), {}), ("log_metrics", ({"loss": 2.5},), {"step": 1})]
            self.assertEqual(calls, [made[0], ("start_run", (), {"run_name": "r"}), made[1], ("end_run", (), {})] if around else made)

    def test_packages_that_are_not_there(self):
        for name, make in (("wandb", loggers.WandB), ("mlflow", loggers.MLflow), ("tensorboard", lambda: loggers.TensorBoard("x"))):
            missing = {"wandb": None, "mlflow": None, "torch.utils.tensorboard": None}
            with mock.patch.dict(sys.modules, missing), self.assertRaisesRegex(PenstockError, f"{name} is not installed\n  hint: pip install {name}"):
                make()

    def test_a_run_of_the_program(self):
        """Lines as it writes them: steps that a resumed run repeats, numbers of each actor, one that is being written."""
        file = self.folder / "metrics.jsonl"
        file.write_text('{"step": 2, "loss": 9.0}\n{"step": 1, "loss": 3.0, "peak_bytes": [5, 7], "recompute": "none"}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
        kept = Kept()
        self.assertEqual(loggers.replay(self.folder, kept), 2)
        self.assertEqual(kept.seen, [(1, {"loss": 3.0, "peak_bytes/0": 5, "peak_bytes/1": 7}), (2, {"loss": 2.0})])
        for text, said in (('{"loss": 1}\n', ":1: the line has no step"), ('{"step": 1}\nx\n', ":2: the line is no JSON"), ("[]\n", ":1: the line has no step")):
            file.write_text(text)
            with self.assertRaisesRegex(PenstockError, said):
                loggers.replay(file, kept)

    @unittest.skipUnless(have("tensorboard"), "tensorboard is not installed")
    def test_the_command(self):
        (self.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n')
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            self.assertEqual(loggers.main([str(self.folder), "--tensorboard", str(self.folder / "board")]), 0)
            self.assertEqual(loggers.main([str(self.folder / "none"), "--tensorboard", str(self.folder / "board")]), 1)
        self.assertEqual(out.getvalue(), f"2 steps in {self.folder}/board: tensorboard --logdir {self.folder}/board\n")
        self.assertRegex(error.getvalue(), "error: cannot read .*/none: No such file or directory\n  hint: the folder that penstock train")
        self.assertEqual(self.scalars(self.folder / "board"), {"loss": [(1, 3.0), (2, 2.0)]})


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
