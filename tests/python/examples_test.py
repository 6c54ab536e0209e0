"""The programs of examples/python run as they stand, and their losses fall.

usage: examples_test.py
"""

import contextlib
import importlib.util
import io
import re
import unittest
from pathlib import Path

import evaluate  # noqa: F401  finds the package
import torch
import zoo

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"


@unittest.skipUnless(zoo.have("transformers", "tokenizers"), "transformers and tokenizers are not installed")
class Examples(unittest.TestCase):
    def test_all(self):
        zoo.stub_torchvision()
        programs = sorted(FOLDER.glob("*.py"))
        self.assertEqual(len(programs), 4)
        for path in programs:
            with self.subTest(path.stem), contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
                spec = importlib.util.spec_from_file_location(path.stem, path)
                program = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(program)
                program.main()
                losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed.getvalue())]
                self.assertGreater(len(losses), 2)
                self.assertLess(losses[-1], 0.9 * losses[0], printed.getvalue())


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
