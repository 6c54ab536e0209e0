"""Penstock in a project of a user's own: as a folder of it, and installed."""

import pathlib
import subprocess
import unittest

from support import PROGRAM, ProgramTest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(PROGRAM).resolve().parent


def cached(name):
    """An entry of the cache of the build that made the program."""
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.partition(":")[0] == name:
            return value
    raise KeyError(name)


class PackageTest(ProgramTest):
    def cmake(self, *arguments):
        return self.tool("CMAKE_COMMAND", *arguments)

    def tool(self, name, *arguments):
        result = subprocess.run([cached(name), *map(str, arguments)], cwd=self.folder, capture_output=True, encoding="utf-8", timeout=600)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def configure(self, penstock, *options):
        (self.folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(outside CXX)\n"
            f"{penstock}\n"
            f'add_executable(outside "{REPOSITORY}/examples/custom_model.cpp")\n'
            f'add_executable(library "{REPOSITORY}/examples/library.cpp")\n'
            "foreach(program outside library)\n  target_link_libraries(${program} PRIVATE Penstock::penstock)\nendforeach()\n"
        )
        compiler = f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}"
        self.cmake("-G", cached("CMAKE_GENERATOR"), "-S", ".", "-B", "build", compiler, *options)

    def test_a_folder_of_a_project(self):
        self.configure(f'add_subdirectory("{REPOSITORY}" penstock)', f"-DPENSTOCK_LIBTORCH={cached('PENSTOCK_LIBTORCH')}")
        steps = self.tool("CMAKE_MAKE_PROGRAM", "-C", "build", "-t", "commands", "outside")
        self.assertIn("libpenstock_core.a", steps)
        self.assertIn("cli/run.cpp", steps)

    def test_installed(self):
        prefix = self.folder / "prefix"
        self.cmake("--install", BUILD, "--prefix", prefix)
        version = subprocess.run([prefix / "bin/penstock", "--version"], capture_output=True, encoding="utf-8")
        self.assertEqual(version.returncode, 0, version.stderr)
        self.assertRegex(version.stdout, r"^penstock \d+\.\d+\n$")
        small = [prefix / "bin/penstock", "check", "--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=16", "--text", self.text]
        checked = subprocess.run(small, capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        (backend,) = prefix.rglob("libpenstock_backend.so")
        backend.unlink()
        checked = subprocess.run(small, capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(checked.returncode, 1)
        self.assertRegex(checked.stderr, r"^error: cannot load libpenstock_backend.so, with which the program computes\n .*\n  hint: cmake --install ")
        self.configure("find_package(Penstock 0.1 REQUIRED)", f"-DCMAKE_PREFIX_PATH={prefix}")
        self.cmake("--build", "build")
        train = [self.folder / "build/outside", "train", "--set", "model.name=trigram", "--text", self.text, "--steps", "1", "--out", self.folder / "run"]
        trained = subprocess.run(train, capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        library = subprocess.run([self.folder / "build/library"], capture_output=True, encoding="utf-8", timeout=120)
        self.assertEqual(library.returncode, 0, library.stdout + library.stderr)
        self.assertRegex(library.stdout, r"(?m)^[2-4] tables raced, .* first: predicted \d")
        self.assertRegex(library.stdout, r"(?m)^equal groups: .*pipe \d+, data \d+")
        self.assertRegex(library.stdout, r"(?m)^a model on 4 devices: loss \d")


if __name__ == "__main__":
    unittest.main()
