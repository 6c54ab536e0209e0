# SPDX-License-Identifier: Apache-2.0
"""The notebooks of examples/notebooks run whole: their cells one after the other, each in a process of its own kind.

usage: notebooks_test.py   A planned model has few layers, with PENSTOCK_SOAK=1 all of its own.
"""

import ast
import contextlib
import importlib.util
import io
import json
import os
import tempfile
import unittest
from pathlib import Path

import kept_exports  # noqa: F401
import zoo
from evaluate import SOAK  # finds the package

FOLDER = Path(__file__).resolve().parents[2] / "examples/notebooks"
FEWER = {"LAYERS = 80": "LAYERS = 2", "seconds=20": "seconds=1", "torch.zeros(512, ": "torch.zeros(64, ", "microbatches=512": "microbatches=64"}


class Notebooks(unittest.TestCase):
    def setUp(self):
        folder, before = tempfile.TemporaryDirectory(), os.getcwd()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)

    def run_notebook(self, name):
        """The names that its cells leave. What a cell ends with is drawn, as a notebook draws it."""
        names = {"__name__": "notebook"}
        book = json.loads((FOLDER / name).read_text())
        for number, cell in enumerate(book["cells"]):
            if cell["cell_type"] != "code":
                continue
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), f"{name}, cell {number}: outputs are stripped")
            source = "".join(cell["source"])
            for own, small in () if SOAK else FEWER.items():
                source = source.replace(own, small)
            with self.subTest(number), contextlib.redirect_stdout(io.StringIO()):
                self.run_cell(source, f"{name}, cell {number}", names)
        return names

    def run_cell(self, source, title, names):
        *statements, last = ast.parse(source, title).body
        exec(compile(ast.Module(statements, []), title, "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), title, "exec"), names)
            return
        shown = eval(compile(ast.Expression(last.value), title, "eval"), names)
        if shown is not None:
            drawn = [getattr(shown, way)() for way in ("_repr_svg_", "_repr_html_") if hasattr(shown, way)]
            self.assertTrue(drawn and drawn[0].startswith("<"), title)

    def check_figures(self, *figures):
        have = importlib.util.find_spec("matplotlib") is not None
        if not have:
            print("matplotlib is not installed: no PDF is written")
        for figure in figures:
            self.assertEqual(Path(f"{figure}.pdf").exists(), have, figure)
            if have:
                self.assertTrue(Path(f"{figure}.pdf").read_bytes().startswith(b"%PDF"))

    def test_compare_schedules(self):
        names = self.run_notebook("compare_schedules.ipynb")
        self.check_figures("step", "step-grey")
        self.assertLess(names["found"].makespan, names["step"].makespan)

    def test_long_documents(self):
        self.run_notebook("long_documents.ipynb")
        self.check_figures("slices")

    @unittest.skipUnless(zoo.have("transformers"), "transformers is not installed")
    def test_plan_llama(self):
        zoo.stub_torchvision()
        names = self.run_notebook("plan_llama.ipynb")
        self.check_figures("llama")
        self.assertGreaterEqual(names["plan"].predicted_time, names["plan"].lower_bound)
        self.assertTrue(Path("llama.html").exists())


if __name__ == "__main__":
    unittest.main()
