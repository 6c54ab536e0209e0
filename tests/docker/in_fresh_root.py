# SPDX-License-Identifier: Apache-2.0
"""Does what the Dockerfile says in fresh roots, where there is no Docker: in_fresh_root.py FOLDER [LENT ...]

Each stage is a Debian of its own below FOLDER, made by debootstrap; this has to run as root. Package managers are told what this machine's are told, and
the folders LENT, such as a mirror's, are there too. Ends with the last stage's entry point, which has to answer --version.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
KEPT = ("etc/apt/sources.list", "etc/apt/sources.list.d", "etc/apt/apt.conf.d", "etc/pip.conf", "etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt")


def steps(text):
    """(instruction, its arguments) of each line, continued ones joined."""
    text = re.sub(r"\\\n\s*", " ", text)
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]


def run(*command, **options):
    subprocess.run([*map(str, command)], check=True, **options)


class Root:
    """One stage: a root, with what RUN finds there."""

    def __init__(self, path, lent):
        self.path, self.folder = path, "/"
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.mounted = [pathlib.Path(place) for place in ("/proc", "/dev", *lent)]

    def make(self, suite):
        if not self.path.exists():
            run("debootstrap", "--variant=minbase", suite, self.path)

    def tell(self):
        """Anew for each step, as installing a package may write its own."""
        for name in KEPT:
            here, there = pathlib.Path("/", name), self.path / name
            if here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            elif here.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)

    def run(self, *command):
        self.tell()
        for place in self.mounted:
            (self.path / place.relative_to("/")).mkdir(parents=True, exist_ok=True)
        mounts = "".join(f"mount --rbind {place} {self.path}{place}; " for place in self.mounted)
        inside = ["chroot", self.path, "sh", "-ec", f'cd {self.folder}; exec "$@"', "sh", *command]
        run("unshare", "-m", "sh", "-ec", f'{mounts} exec "$@"', "sh", *inside, env=self.environment)


def main():
    base, lent = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    roots, names, entry = [], {}, []
    for instruction, arguments in steps((REPOSITORY / "Dockerfile").read_text()):
        began = time.monotonic()
        print(f"--- {instruction} {arguments}", flush=True)
        if instruction == "FROM":
            image, _, name = arguments.partition(" AS ")
            roots.append(Root(base / f"stage{len(roots)}", lent))
            names[name or "last"] = roots[-1]
            roots[-1].make({"debian:12": "bookworm"}[image])
        root = roots[-1]
        if instruction == "RUN":
            root.run("sh", "-ec", arguments)
        elif instruction == "WORKDIR":
            root.folder = arguments
            (root.path / arguments.removeprefix("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "ENV":
            root.environment |= [arguments.split("=", 1)]
        elif instruction == "COPY" and arguments.startswith("--from="):
            source, there = arguments.removeprefix("--from=").split(" ", 1)[0], arguments.split()[1:]
            shutil.copytree(names[source].path / there[0].removeprefix("/"), root.path / there[1].removeprefix("/"), dirs_exist_ok=True)
        elif instruction == "COPY":
            run("git", "clone", "-q", REPOSITORY, root.path / root.folder.removeprefix("/"))
        elif instruction == "ENTRYPOINT":
            entry = json.loads(arguments)
        print(f"--- {time.monotonic() - began:.0f} s", flush=True)
    roots[-1].run(*entry, "--version")


if __name__ == "__main__":
    main()
