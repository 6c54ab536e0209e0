# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel in a fresh environment, far from the tree, and does there what both pages of five minutes say: try_wheel.py WHEEL PYTHON

PyTorch is that of PYTHON, which is lent by its path. Prints how long each page takes.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page):
    return re.findall(r"^ {4}(penstock .*)$", (DOCS / page).read_text(), re.MULTILINE)


class Fresh:
    """An environment with the wheel, in an empty folder."""

    def __init__(self, folder, wheel, python):
        self.folder = folder
        self.run(python, "-m", "venv", "venv")
        lent = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True).stdout
        (packages,) = (folder / "venv/lib").glob("python3*/site-packages")
        (packages / "lent.pth").write_text(lent)
        self.run("venv/bin/pip", "install", "-q", "--no-deps", "--no-index", str(wheel))

    def run(self, *arguments):
        environment = {"PATH": f"{self.folder}/venv/bin:/usr/bin:/bin", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        result = subprocess.run(arguments, cwd=self.folder, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, arguments))}\n{result.stdout}{result.stderr}")
        return result.stdout

    def timed(self, what, steps):
        began = time.monotonic()
        for step in steps:
            self.run(*step)
        print(f"{what}: {time.monotonic() - began:.0f} s")


def main():
    wheel, python = pathlib.Path(sys.argv[1]).resolve(), os.path.abspath(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        fresh = Fresh(pathlib.Path(folder), wheel, python)
        version = fresh.run("venv/bin/python", "-c", "import penstock; print(penstock.__version__)").strip()
        for program in (["venv/bin/penstock"], ["venv/bin/python", "-m", "penstock"]):
            said = fresh.run(*program, "--version")
            if not said.startswith(f"penstock {version} ("):
                raise SystemExit(f"the package is {version}, and {' '.join(program)} says {said}")
        (fresh.folder / "start.py").write_text("\n".join(blocks("start_python.md", "python")))
        fresh.timed("five minutes from Python", [["venv/bin/python", "start.py"]])
        fresh.timed("five minutes with the program", [["sh", "-ec", command] for command in commands("start_program.md")])


if __name__ == "__main__":
    main()
