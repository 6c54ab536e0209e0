# SPDX-License-Identifier: Apache-2.0
"""Stubs of NVIDIA's libraries, with which libtorch for CUDA loads where only some of them are installed.

stubs.py LIBTORCH OUT makes, for LIBTORCH/lib/libtorch_cuda.so and what it needs of that folder, each library that is nowhere found: under its
name, with the functions and versions of functions that are asked of it. Whoever calls one ends at once. It also makes a driver, libcuda.so.1
(driver.c), in a folder OUT/driver of its own.
"""

import pathlib
import re
import subprocess
import sys


def output(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, encoding="utf-8", check=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))


def versions_of_files(library):
    """Which library each version of a function is of: {"NVSHMEM": "libnvshmem_host.so.3"}."""
    found, file = {}, ""
    for line in output("readelf", "-V", "--wide", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags:.*Version: \d+", line):
            found[match[1]] = file
    return found


def functions(library, which):
    """The names, with @VERSION where they have one, of what a library has or asks for. What it can do without is left out."""
    lines = (line.split() for line in output("nm", "-D", which, "--with-symbol-versions", library).splitlines())
    return {words[-1].replace("@@", "@") for words in lines if words[-2] not in "vw"}


class Libraries:
    def __init__(self, libtorch):
        self.own = libtorch / "lib"
        self.folders = [self.own, *libtorch.parent.glob("nvidia/*/lib")]
        self.installed = output("/sbin/ldconfig", "-p")

    def find(self, name):
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)

    def is_missing(self, name):
        return not self.find(name) and f"\t{name} " not in self.installed

    def with_needed(self, name):
        """The library, and those of libtorch's own folder that it needs."""
        found, open_ = [], [name]
        while open_:
            library = self.own / open_.pop()
            if library.exists() and library not in found:
                found.append(library)
                open_ += needed(library)
        return found


def missing(libraries):
    """The symbols that are asked of each library that is nowhere found, by version. One without a version may be in any of them."""
    loaded = libraries.with_needed("libtorch_cuda.so")
    names = {name for library in loaded for name in needed(library)}
    stubs = {name: {} for name in sorted(names) if libraries.is_missing(name)}
    there = [path for name in names if (path := libraries.find(name))]
    defined = {name.split("@")[0] for library in {*loaded, *there} for name in functions(library, "--defined-only")}
    for library in loaded:
        of_version = versions_of_files(library)
        for name, _, version in (function.partition("@") for function in functions(library, "--undefined-only")):
            if version and of_version.get(version) in stubs:
                stubs[of_version[version]].setdefault(version, set()).add(name)
            elif not version and name not in defined:
                next(iter(stubs.values())).setdefault("", set()).add(name)
    return stubs


def compile_library(path, *sources):
    subprocess.run(["gcc", "-w", "-O1", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, *sources], check=True)


def make_stub(path, by_version):
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    names = sorted(name for some in by_version.values() for name in some)
    source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names))
    script.write_text("".join(f"{version} {{ global: {'; '.join(sorted(some))}; }};\n" for version, some in by_version.items() if version))
    compile_library(path, source, *([f"-Wl,--version-script={script}"] if script.read_text() else []))


def make(libtorch, out):
    libraries = Libraries(pathlib.Path(libtorch))
    (out / "driver").mkdir(parents=True, exist_ok=True)
    for name, by_version in missing(libraries).items():
        make_stub(out / name, by_version)
    compile_library(out / "driver/libcuda.so.1", pathlib.Path(__file__).with_name("driver.c"))


if __name__ == "__main__":
    make(sys.argv[1], pathlib.Path(sys.argv[2]))
