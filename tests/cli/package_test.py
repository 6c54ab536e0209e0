# SPDX-License-Identifier: Apache-2.0
"""Penstock in a project of a user's own: as a folder of it, and installed."""

import os
import pathlib
import re
import subprocess
import unittest

from support import PROGRAM, SMALL, ProgramTest, Result, free_port, run, start

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(PROGRAM).resolve().parent


def cached(name):
    """An entry of the cache of the build that made the program."""
    for line in (BUILD / "CMakeCache.txt").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.partition(":")[0] == name:
            return value
    raise KeyError(name)


def runpaths(folder):
    """Where each program and library below the folder looks for libraries: the entries of its RPATH or RUNPATH, by its path."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "CMakeFiles"]
        for path in (pathlib.Path(place) / name for name in files):
            if path.is_symlink() or path.suffix == ".o" or path.read_bytes()[:4] != b"\x7fELF":
                continue
            dynamic = subprocess.run(["readelf", "--dynamic", path], capture_output=True, encoding="utf-8", check=True).stdout
            found[path] = [entry for entries in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic) for entry in entries.split(":")]
    return found


def build_id(file):
    notes = subprocess.run(["readelf", "--notes", file], capture_output=True, encoding="utf-8", check=True).stdout
    return bytes.fromhex(re.search(r"Build ID: (\w+)", notes)[1])


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
        compiles = [line for line in steps.splitlines() if " -c " in line]
        (own,) = (line for line in compiles if line.endswith("custom_model.cpp"))
        (main,) = (line for line in compiles if line.endswith("linked_backend.cpp"))
        self.assertTrue("libpenstock_core.a" in steps and " -O3 " in main)  # Release, where the project says nothing
        self.assertTrue(f"-I{REPOSITORY}/include " in own and f"{REPOSITORY}/src" not in own, own)

    def assert_clean(self, found):
        """No entry depends on the folder that a program is started in, as an empty and a relative one do."""
        for path, entries in found.items():
            for entry in entries:
                with self.subTest(path):
                    self.assertRegex(entry, r"^(/|\$ORIGIN(/|$))")

    def test_libraries_are_looked_for_in_fixed_places(self):
        found = runpaths(BUILD)
        self.assert_clean(found)
        names = {path.name.partition(".")[0] for path in found}
        self.assertLessEqual({"penstock", "libpenstock_backend", "custom_model", "library"}, names)
        self.assertEqual("_core" in names, cached("PENSTOCK_MODULE") == "ON")

    def test_what_is_installed_is_built_before(self):
        """By `make install` in a folder where nothing else was built."""
        commands = subprocess.run(["make", "-n", "install", "CMAKE=cmake", "PREFIX=p"], cwd=REPOSITORY, capture_output=True, encoding="utf-8", check=True).stdout
        targets = re.findall(r"cmake --build build --target (\S+)", commands)
        made = self.tool("CMAKE_MAKE_PROGRAM", "-C", BUILD, "-t", "commands", *targets).split()
        scripts = [path.read_text() for path in BUILD.rglob("cmake_install.cmake") if path.parent.name != "tests"]
        installed = {file for script in scripts for file in re.findall(rf'"{BUILD}/([^"]+\.(?:a|so)|penstock)"', script)}
        self.assertIn("libpenstock_cli.a", installed)
        self.assertLessEqual(installed, {*made})

    def test_every_source_names_its_licence(self):
        """In its first line, or behind the one that says what runs it."""
        folders = ("bench", "cli", "cmake", "examples", "include", "python", "scripts", "site", "src", "tests")
        suffixes = (".cpp", ".h", ".inl", ".cu", ".cuh", ".js", ".c", ".css", ".py", ".sh", ".cmake")
        sources = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes and "golden" not in path.parts]
        self.assertGreater(len(sources), 1500)
        without = [str(path) for path in sources if "SPDX-License-Identifier: Apache-2.0" not in "".join(path.read_text().splitlines()[:2])]
        self.assertEqual(without, [])

    def copied(self, folder, *patched):
        """The program and its library in a folder; of those named another build id."""
        folder = self.folder / folder
        folder.mkdir()
        for file in (pathlib.Path(PROGRAM), BUILD / "libpenstock_backend.so"):
            content = file.read_bytes()
            if file.name in patched:
                self.assertEqual(content.count(own := build_id(file)), 1)
                content = content.replace(own, bytes(byte ^ 255 for byte in own))
            (folder / file.name).write_bytes(content)
            (folder / file.name).chmod(0o755)
        return folder / "penstock"

    def test_a_library_of_another_build(self):
        """Nothing of it runs: the program says both builds, and so does a rank of a run."""
        program = self.copied("other", "libpenstock_backend.so")
        known, other = (build_id(folder / "libpenstock_backend.so").hex() for folder in (BUILD, program.parent))
        check = ["check", *SMALL, "--text", self.text]
        self.assert_fails(
            run(*check, program=program), f"{program.parent}/libpenstock_backend.so is of another build than the program",
            f"the program was built with: {known}", f"the library is: {other}", "hint: build both anew (make build), or install both",
        )  # fmt: skip
        self.assertEqual(run(*check, program=self.copied("same")).code, 0)
        (program.parent / "libpenstock_backend.so").write_text("")
        self.assert_fails(run(*check, program=program), "the library is: without a build id")

    def test_a_library_that_is_cut_off(self):
        """It has the right build id, and to run what is missing of it would be a bus error."""
        program, check = self.copied("cut"), ["check", *SMALL, "--text", self.text]
        library = program.parent / "libpenstock_backend.so"
        whole = library.stat().st_size
        for left in (whole - 1, 4_000_000, 1_000_000, 100_000, 50_000, 800):
            os.truncate(library, left)
            self.assert_fails(run(*check, program=program), f"{library} is not whole", f"it has {left} bytes; its headers say {whole}", "hint: build both anew")

    def test_a_rank_of_another_build(self):
        program, port = self.copied("other", "penstock"), free_port()
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = self.train_arguments("out", 1, "--backend", "gloo")
        ranks = [start(*arguments, program=one, environment={"RANK": str(rank), **place}) for rank, one in enumerate([PROGRAM, program])]
        for result in map(Result, ranks):
            self.assert_fails(
                result, "rank 1 has another build of penstock than rank 0", f"rank 0: {build_id(PROGRAM).hex()}", f"rank 1: {build_id(program).hex()}",
            )  # fmt: skip

    def test_installed(self):
        prefix = self.folder / "prefix"
        self.cmake("--install", BUILD, "--prefix", prefix)
        self.assert_clean(runpaths(prefix))
        version = subprocess.run([prefix / "bin/penstock", "--version"], capture_output=True, encoding="utf-8")
        self.assertEqual(version.returncode, 0, version.stderr)
        self.assertRegex(version.stdout, r"^penstock \d+\.\d+ \((commit [0-9a-f]+(, changed)?, )?libtorch \d+\.\d+\)\n$")
        self.assertIn(".TH", (prefix / "share/man/man1/penstock-train.1").read_text())
        self.assertIn("penstock", (prefix / "share/bash-completion/completions/penstock").read_text())
        small = [prefix / "bin/penstock", "check", "--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=16", "--text", self.text]
        checked = subprocess.run(small, capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        (backend,) = prefix.rglob("libpenstock_backend.so")
        backend.unlink()
        checked = subprocess.run(small, capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(checked.returncode, 1)
        self.assertRegex(checked.stderr, r"^error: cannot load libpenstock_backend.so, with which the program computes\n .*\n  hint: cmake --install ")
        self.configure("find_package(Penstock 0.2 REQUIRED)", f"-DCMAKE_PREFIX_PATH={prefix}")
        self.cmake("--build", "build")
        train = [self.folder / "build/outside", "train", "--set", "model.name=trigram", "--text", self.text, "--steps", "1", "--out", self.folder / "run"]
        trained = subprocess.run(train, capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        library = subprocess.run([self.folder / "build/library"], capture_output=True, encoding="utf-8", timeout=300)
        self.assertEqual(library.returncode, 0, library.stdout + library.stderr)
        self.assertRegex(library.stdout, r"(?m)^[2-4] tables raced, .* first: predicted \d")
        self.assertRegex(library.stdout, r"(?m)^equal groups: .*pipe \d+, data \d+")
        self.assertRegex(library.stdout, r"(?m)^a model on 4 devices: loss \d")


if __name__ == "__main__":
    unittest.main()
