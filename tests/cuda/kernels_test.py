# SPDX-License-Identifier: Apache-2.0
"""Our own kernels and generated ones compile for every card that they are made for, without registers that go to memory."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "src/run/cuda/kernels.cu"
CHAINS = sorted((ROOT / "tests/golden/chains").glob("*.cu"))
NVCC, CARDS = os.environ["NVCC"], os.environ["CARDS"].split(",")


def by_name(text):
    """The compiler's text on each kernel, by its name."""
    parts = re.split(r"Compiling entry function '(\w+)'", text)
    return dict(zip(parts[1::2], parts[2::2]))


def said_by_nvcc(card):
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([NVCC, "-std=c++20", f"-arch=sm_{card}", "-cubin", "-Xptxas", "-v", str(TEXT), "-o", f"{folder}/out"],
                              check=True, capture_output=True, text=True).stderr


def said_by_nvrtc(card):
    """As a build without nvcc compiles them when the program runs."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([os.environ["COMPILE_TEXT"], os.environ["NVRTC"], card, "own", f"{folder}/out"],
                              check=True, capture_output=True, text=True).stdout


class Kernels(unittest.TestCase):
    def test_nothing_spills(self):
        kernels = set(re.findall(r"^KERNEL void (\w+)\(", TEXT.read_text(), re.MULTILINE))
        for compiler in (said_by_nvcc, said_by_nvrtc):
            for card in CARDS:
                said = by_name(compiler(card))
                self.assertEqual(set(said), kernels)
                for name, lines in said.items():
                    spills = re.findall(r"(\d+) bytes spill", lines)
                    self.assertTrue(spills, f"{name} for sm_{card}: {lines}")
                    self.assertEqual(set(spills), {"0"}, f"{name} for sm_{card}")

    def test_generated_ones_neither(self):
        """By NVRTC, as the program does it."""
        self.assertGreaterEqual(len(CHAINS), 5)
        with tempfile.TemporaryDirectory() as folder:
            for text in CHAINS:
                for card in CARDS:
                    out = pathlib.Path(folder) / "out"
                    run = subprocess.run([os.environ["COMPILE_TEXT"], os.environ["NVRTC"], card, text, out], capture_output=True, text=True)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(out.read_bytes()[:4], b"\x7fELF")
                    self.assertIn("--fmad=false", run.stdout)
                    self.assertEqual(set(re.findall(r"(\d+) bytes (?:spill|stack)", run.stdout)), {"0"}, f"{text.name} for sm_{card}: {run.stdout}")

    def test_what_is_wrong_with_one_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "wrong.cu"
            text.write_text("KERNEL void chain(float* p0) { p0[0] = nothing; }")
            run = subprocess.run([os.environ["COMPILE_TEXT"], os.environ["NVRTC"], "90", text, text], capture_output=True, text=True)
            self.assertRegex(run.stderr, r'(?s)^NVRTC does not compile kernels with --gpu-architecture=sm_90: .*identifier "nothing" is undefined')
            run = subprocess.run([os.environ["COMPILE_TEXT"], "libnvrtc.so.1", "90", text, text], capture_output=True, text=True)
            self.assertRegex(run.stderr, "^there is no NVRTC: libnvrtc.so.1: cannot open shared object file")


if __name__ == "__main__":
    unittest.main()
