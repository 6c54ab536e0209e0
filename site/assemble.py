"""Puts the site's source together: assemble.py PROGRAM FOLDER

What people write is in docs/ and copied; what the program says of itself (its commands, keys and schedules) is asked of it, so that it is never old.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]

# What a schedule is drawn with, where it is not four actors and eight micro-batches.
DRAWN = {
    **dict.fromkeys(("breadth-first", "interleaved-1f1b", "interleaved-zb", "zeropp", "zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe-v-jaxpp", "bitpipe",
                     "hanayo", "bidirectional"), {"--chunks": "2"}),
    **dict.fromkeys(("terapipe", "seq1f1b"), {"--microbatches": "2", "--slices": "4"}),
    **dict.fromkeys(("pipedream", "xpipe", "pipeoptim", "hetpipe", "layerpipe", "nestpipe"), {"--actors": "3", "--microbatches": "2", "--window": "4"}),
    "helixpipe": {"--actors": "2", "--microbatches": "4", "--chunks": "2"},
    "slimpipe": {"--microbatches": "2", "--slices": "8"},
    "slimpipe-exchange": {"--actors": "2", "--microbatches": "2", "--slices": "4"},
    "pipedream-2bw": {"--actors": "3", "--microbatches": "4", "--window": "3"},
}


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def __call__(self, *arguments):
        result = subprocess.run([self.path, *arguments], cwd=self.folder, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(f"penstock {' '.join(arguments)}\n{result.stderr}")
        return result.stdout


def subcommands(text):
    """The names that a --help lists."""
    return re.findall(r"^  ([a-z]+) {2,}", text, re.MULTILINE)


def command_line(penstock):
    page = ["# Command line\n\nWhat each command's `--help` says. [Running](../docs/running.md) explains them.\n"]

    def add(*command):
        text = penstock(*command, "--help")
        page.append(f"## penstock {' '.join(command)}\n\n```text\n{text.strip()}\n```\n")
        for name in subcommands(text):
            add(*command, name)

    for name in subcommands(penstock("--help")):
        add(name)
    return "\n".join(page)


def configuration(penstock):
    return ("# Configuration\n\nEvery key with its default, its unit and what it says, as `penstock config` prints them; those of `[model]` are of the model `gpt`.\n\n"
            f"```toml\n{penstock('config').strip()}\n```\n")


def schedules(penstock, folder):
    """The gallery: each schedule drawn, with its figures."""
    page = ["# All schedules\n\nEach schedule by its generator, where a forward takes 1, a backward 2 and a transfer nothing. `penstock schedule NAME --show` draws it as text, "
            "`penstock schedule compare` ranks them for your own times.\n"]
    for schedule in json.loads(penstock("schedule", "list", "--json"))["schedules"]:
        name = schedule["name"]
        given = {"--actors": "4", "--microbatches": "8"} | DRAWN.get(name, {})
        flags = [word for pair in given.items() for word in pair]
        said = penstock("simulate", name, *flags, "--timeline", "timeline.json").strip().splitlines()
        penstock("show", "timeline.json", "--out", str(folder / f"{name}.svg"))
        page.append(f"## {name}\n\n{schedule['summary'].capitalize()}.\n\n![The timeline of {name}]({name}.svg)\n\n"
                    f"`penstock schedule {name} {' '.join(flags)}`: {next(line for line in said if line.startswith('makespan'))}\n")
    return "\n".join(page)


def copy_documents(source):
    """In the folders that they have in the repository, so that links between them stay as they are."""
    shutil.copytree(REPOSITORY / "docs", source / "docs")
    for path in (*REPOSITORY.glob("src/**/README.md"), *map(REPOSITORY.joinpath, ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"))):
        copy = source / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def main():
    program, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    shutil.rmtree(source, ignore_errors=True)
    copy_documents(source)
    penstock, reference = Program(program, source), source / "reference"
    reference.mkdir()
    (reference / "command_line.md").write_text(command_line(penstock))
    (reference / "configuration.md").write_text(configuration(penstock))
    (source / "schedules").mkdir()
    (source / "schedules/index.md").write_text(schedules(penstock, source / "schedules"))
    (source / "timeline.json").unlink()


if __name__ == "__main__":
    main()
