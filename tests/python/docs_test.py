"""The Python of docs/pytorch.md runs as it stands.

usage: docs_test.py
"""

import contextlib
import io
import os
import re
import tempfile
import unittest
from pathlib import Path

import evaluate  # noqa: F401  (it finds the package)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


class Page(unittest.TestCase):
    def setUp(self):
        """What the blocks write goes with the test."""
        folder, before = tempfile.TemporaryDirectory(), os.getcwd()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)

    def test_blocks(self):
        """One after the other, as a reader would type them."""
        names = {"__name__": "page"}
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.assertTrue(blocks)
        for number, block in enumerate(blocks):
            with self.subTest(number), contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)


if __name__ == "__main__":
    unittest.main()
