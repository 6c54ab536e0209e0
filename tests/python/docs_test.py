# SPDX-License-Identifier: Apache-2.0
"""The Python and the commands of pages about the package run as they stand.

usage: docs_test.py, with PENSTOCK the program's path
"""

import contextlib
import io
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import evaluate  # noqa: F401  (it finds the package)
import zoo

PAGES = [Path(__file__).resolve().parents[2] / name for name in
         ("README.md", *(f"docs/{name}.md" for name in (
             "pytorch", "pytorch_loops", "monitoring", "start_python", "researchers", "coming_from/torch_pipelining", "coming_from/deepspeed",
             "coming_from/lightning", "coming_from/accelerate", "tutorials/my_module", "tutorials/my_schedule")))]
PROGRAM = Path(os.environ.get("PENSTOCK", "build/penstock")).resolve()


class Page(unittest.TestCase):
    def setUp(self):
        """Files that the blocks write go with the test."""
        folder, before = tempfile.TemporaryDirectory(), os.getcwd()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)

    def test_blocks(self):
        """One after the other, as a reader would type them, in an empty folder."""
        for page in PAGES:
            self.run_page(page)

    def run_page(self, page):
        names = {"__name__": "page"}
        blocks = re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        self.assertTrue(blocks)
        if zoo.have("transformers", "accelerate"):
            zoo.stub_torchvision()
        else:
            blocks = blocks[: next((i for i, (_, block) in enumerate(blocks) if re.search("import (transformers|accelerate)", block)), None)]
        blocks = [(language, block) for language, block in blocks if self.has_what_it_needs(block)]
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for number, (language, block) in enumerate(blocks):
                with self.subTest(number):
                    self.run_block(language, block, names, f"{page.name}, block {number}")

    def has_what_it_needs(self, block):
        """Whether the packages are installed that its first line names: "# needs matplotlib"."""
        missing = [name for name in re.findall(r"\A# needs (\w+)", block) if not zoo.have(name)]
        for name in missing:
            print(f"{name} is not installed: a block is left out")
        return not missing

    def run_block(self, language, block, names, title):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, title, "exec"), names)
            return
        path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        result = subprocess.run(["sh", "-ex"], input=block, capture_output=True, text=True, errors="replace", env={**os.environ, "PATH": path})
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
