# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python run, with fewer layers and samples, and their losses fall.

usage: examples_test.py
"""

import contextlib
import importlib.util
import io
import re
import tempfile
import unittest
from pathlib import Path

import evaluate  # noqa: F401  finds the package
import torch
import zoo

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"

# Sizes with which the same programs take seconds: an export takes as long as a model is deep.
SMALL = [
    (r"\b(num_(hidden_)?layers)=\d+", r"\1=1"),
    (r"\bn_layer=4", "n_layer=2"),
    (r'"transformer\.h\.2"', '"transformer.h.1"'),
    (r"\b64, 16, 120", "64, 16, 60"),
    (r"\breturn 2048", "return 1024"),
]


@unittest.skipUnless(zoo.have("transformers", "tokenizers"), "transformers and tokenizers are not installed")
class Examples(unittest.TestCase):
    def test_all(self):
        zoo.stub_torchvision()
        programs = sorted(FOLDER.glob("*.py"))
        self.assertEqual(len(programs), 4)
        for path in programs:
            with (self.subTest(path.stem), tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed,
                  contextlib.redirect_stderr(io.StringIO())):
                source = path.read_text()
                for pattern, small in SMALL:
                    source = re.sub(pattern, small, source)
                self.assertNotEqual(source, path.read_text())
                (Path(folder) / path.name).write_text(source)
                spec = importlib.util.spec_from_file_location(path.stem, Path(folder) / path.name)
                program = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(program)
                program.main()
                losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed.getvalue())]
                self.assertGreater(len(losses), 2)
                self.assertLess(losses[-1], 0.9 * losses[0], printed.getvalue())


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
