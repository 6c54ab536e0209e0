# SPDX-License-Identifier: Apache-2.0
"""The device cuda where there is no GPU: what the program says then, and that without it no library of CUDA's devices is loaded."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import PROGRAM, SMALL, ProgramTest, run

STUBS = pathlib.Path(os.environ["CUDA_STUBS"])
BUILD = pathlib.Path(PROGRAM).parent
WITHOUT_DRIVER = str(STUBS)
WITH_DRIVER = f"{STUBS / 'driver'}:{STUBS}"
NO_DEVICE = "there is no CUDA device"


def runpath(file):
    """Where a program or library looks for libraries."""
    dynamic = subprocess.run(["readelf", "--dynamic", file], capture_output=True, encoding="utf-8", check=True).stdout
    return re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)


class NoGpu(ProgramTest):
    def check(self, *flags, libraries="", program=PROGRAM, **variables):
        """The program with these folders of libraries before the system's, and with these variables."""
        environment = {"LD_LIBRARY_PATH": libraries, **variables}
        return run("check", *SMALL, "--text", self.text, *flags, environment=environment, program=program)

    def assert_says(self, result, *lines):
        self.assertEqual(result.code, 1, result.err)
        self.assertEqual(result.out, "")
        self.assertEqual(result.err.splitlines(), list(lines))

    def test_a_library_of_nvidias_is_missing(self):
        result = self.check("--device", "cuda")
        self.assertEqual(result.code, 1, result.err)
        first, second, third = result.err.splitlines()
        self.assertEqual(first, 'error: cannot load libpenstock_cuda.so, which is the device "cuda"')
        name = re.fullmatch(r"  (\S+): cannot open shared object file: No such file or directory", second)
        self.assertTrue(name and (STUBS / name[1]).exists(), second)
        self.assertEqual(third, "  hint: libtorch for CUDA needs NVIDIA's libraries: pip install torch, with all that it depends on")

    def test_a_build_without_it(self):
        for file in (PROGRAM, BUILD / "libpenstock_backend.so"):
            shutil.copy(file, self.folder)
        result = self.check("--device", "cuda:1", program=self.folder / "penstock")
        hint = "  hint: it is built with a libtorch for CUDA: name a Python that has one in PENSTOCK_PYTHON, and build again"
        self.assert_says(result, 'error: this build has no device "cuda"', "  there is no libpenstock_cuda.so", hint)

    HINT = "  hint: --device cpu, or a machine with an NVIDIA GPU and its driver"

    def test_there_is_no_driver(self):
        result = self.check("--device", "cuda", libraries=WITHOUT_DRIVER)
        self.assert_says(result, f"error: {NO_DEVICE}", "  there is no NVIDIA driver (libcuda.so.1)", self.HINT)

    def test_the_driver_is_too_old(self):
        result = self.check("--device", "cuda:0", libraries=WITH_DRIVER, FAKE_DRIVER_VERSION="12020")
        self.assert_says(result, f"error: {NO_DEVICE}", "  the NVIDIA driver is too old: it is for CUDA 12.2, libtorch's CUDA is 13.0", self.HINT)

    def test_the_driver_finds_no_device(self):
        result = self.check("--device", "cuda", libraries=WITH_DRIVER)
        self.assert_says(result, f"error: {NO_DEVICE}", "  no CUDA-capable device is detected", self.HINT)
        result = self.check("--device", "cuda", libraries=WITH_DRIVER, CUDA_VISIBLE_DEVICES="")
        self.assert_says(result, f"error: {NO_DEVICE}", '  no CUDA-capable device is detected, CUDA_VISIBLE_DEVICES is ""', self.HINT)

    def test_the_driver_fails(self):
        result = self.check("--device", "cuda", libraries=WITH_DRIVER, FAKE_DRIVER_ERROR="803")
        self.assert_says(result, f"error: {NO_DEVICE}", "  system has unsupported display driver / cuda driver combination", self.HINT)

    def test_every_command_that_computes_says_it(self):
        for command in (self.train_arguments("run", 1), ["check", *SMALL, "--text", self.text, "--schedule", "1f1b"]):
            result = run(*command, "--device", "cuda", environment={"LD_LIBRARY_PATH": WITH_DRIVER})
            self.assertEqual(result.code, 1, result.err)
            self.assertIn(f"error: {NO_DEVICE}", result.err)

    def test_on_the_host_nothing_of_cudas_devices_is_loaded(self):
        log = self.folder / "loaded"
        result = self.check("--device", "cpu", "--json", LD_DEBUG="files", LD_DEBUG_OUTPUT=str(log))
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.json()["equal"])
        text = "".join(file.read_text() for file in self.folder.glob("loaded.*"))
        loaded = {pathlib.Path(path).name for path in re.findall(r"calling init: (\S+)", text)}
        self.assertIn("libtorch_cpu.so", loaded)
        self.assertFalse({name for name in loaded if re.match(r"libtorch_cuda|libc10_cuda|libpenstock_cuda|libcuda\.|libcublas|libcudnn|libnccl", name)})

    def test_it_is_installed_beside_the_backend(self):
        subprocess.run([os.environ["CMAKE"], "--install", BUILD, "--prefix", self.folder / "there"], check=True, capture_output=True)
        installed = list((self.folder / "there").rglob("libpenstock_*.so"))
        self.assertEqual(sorted(file.name for file in installed), ["libpenstock_backend.so", "libpenstock_cuda.so"])
        self.assertEqual(len({file.parent for file in installed}), 1)
        (backend,), (cuda,) = (runpath(file) for file in sorted(installed))
        self.assertEqual(cuda, backend)
        self.assertTrue((pathlib.Path(cuda) / "libtorch_cuda.so").exists(), cuda)
        result = self.check("--device", "cuda", libraries=WITH_DRIVER, program=self.folder / "there/bin/penstock")
        self.assertEqual(result.err.splitlines()[:1], [f"error: {NO_DEVICE}"])


if __name__ == "__main__":
    unittest.main()
