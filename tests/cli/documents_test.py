# SPDX-License-Identifier: Apache-2.0
"""Every command that a document or a --help shows is run, in a folder where `penstock` is the program and the examples are small."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from support import PROGRAM, ProgramTest, run, sampled

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("PENSTOCK_PYTHON", "")  # with torch, or none

# Sizes and lengths with which the same commands take seconds, in a configuration's file and in a command.
SMALL_FILE = [
    (r"width = \d+", "width = 32"),
    (r"heads = \d+", "heads = 2"),
    (r"context = \d+", "context = 16"),
    (r"steps = \d+", "steps = 4"),
    (r"batch = \d+", "batch = 16"),
    (r"validation_every = \d+", "validation_every = 0"),
]  # fmt: skip
SMALL_COMMAND = [
    (r"penstock config > gpt\.toml", "penstock config --set width=32 --set heads=2 --set context=16 --set batch=16 --set validation_every=0 > gpt.toml"),
    (r"steps([ =])20+\b", r"steps\g<1>4"),
    (r"steps([ =])400", r"steps\g<1>8"),
    (r"model\.layers=62\b(.*)--batch 512", r"model.layers=16\1--batch 128"),
    (r"model\.width=256\b", "model.width=32"),
    (r"model\.context=128\b", "model.context=16"),
    (r"--tokens \d+", "--tokens 3"),
    (r"((?:penstock|--) (?:train|check|compile|mesh))\b(?! examples/| gpt\.toml| --resume| --set model.name=)", r"\1 --set width=32 --set heads=2 --set context=16 --set validation_every=0"),
    (r"((?:penstock|--) train)\b(?!.*steps)", r"\1 --steps 4"),
    (r"penstock (schedule search|plan)\b(?!.*degrees)", r"penstock \1 --seconds 0.5"),
    (r"examples/long_slices\.toml", r"\g<0> --set width=32 --set context=64"),
    (r"examples/gpt_documents\.toml", r"\g<0> --set width=32"),
    (r"(?<= train --steps 4 )examples/long\.toml", r"\g<0> --set width=32 --set context=256"),
    (r"examples/docstrings\.py", rf"\g<0> {REPOSITORY}/python"),  # fewer functions than the library of Python has
    (r"--cluster local", "--cluster local --rounds 1 --candidates 1"),
    (r"penstock plan (.*)--device standin", r"penstock plan \1--device standin --set model.layers=2 --set batch=8 --set dtype=f64 --microbatch-sizes 2"),
    (r"((?:penstock|--) profile)\b", r"\1 --rounds 1"),
    (r"\.venv/bin/torchrun\b", f"{PYTHON} -m torch.distributed.run"),
    (r"--device cuda\b", "--device standin"),  # no GPU is there
    # Of these one prints a sample of text, which takes the stand-in longer than the steps.
    (r"(?<= train )(.*--device standin)(?!.* runs/standin)", r"\1 --json"),
    (r"--measure", "--rounds 1 --steps 1 --candidates 1 --measure"),
]  # fmt: skip

# These commands write the files that a --help's examples read.
BEFORE_HELP = [
    "penstock train examples/gpt.toml --out runs/gpt",
    "penstock train examples/gpt.toml --steps 2 --out runs/before",
    "penstock train examples/gpt.toml --steps 2 --out runs/after",
    "penstock train --set model.name=latent_diffusion --steps 1 --out runs/pictures",
    "penstock profile examples/gpt.toml --out costs.json",
    "penstock simulate examples/gpt.toml --costs costs.json --timeline predicted.json",
]


def commands_of(markdown):
    """The commands of penstock, and of the script that makes its data, in fenced blocks without a language or of sh and in indented lines, in order, without their comments; in a ```console block what follows a "$ ", as the rest is output."""
    text = re.sub(r" *\\\n *", " ", markdown)
    lines, fence = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        elif fence == "```console":
            lines += [line.removeprefix("$ ")] if line.startswith("$ ") else []
        elif fence in ("```", "```sh") or not fence and line.startswith("    "):
            lines.append(line.strip())
    return [re.sub(r" +#.*", "", line) for line in lines if re.match(r"(.*[ /])?penstock [a-z](?!.*\.py)|python3 examples/docstrings\.py", line)]


def shown_outputs(markdown):
    """Each command in a ```console block, with the output that the block shows of it."""
    blocks = re.findall(r"^```console\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return [pair for block in blocks for pair in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]


def is_output(shown, output):
    """Whether this is the output shown, in which "..." stands for lines that are left out, or within a line for a part of it."""
    lines = [r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in shown.splitlines()]
    return re.fullmatch("".join(lines), output) is not None


def examples_of(help_text):
    return [line.strip() for line in help_text.partition("Example:")[2].splitlines() if "penstock " in line]


class Documents(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(REPOSITORY / "examples", self.folder / "examples")
        for folder in ("src", "docs"):
            (self.folder / folder).symlink_to(REPOSITORY / folder)
        (self.folder / "build").mkdir()
        (self.folder / "build/penstock").symlink_to(PROGRAM)
        config = self.folder / "examples/gpt.toml"
        text = config.read_text()
        for pattern, small in SMALL_FILE:
            self.assertRegex(text, pattern)
            text = re.sub(pattern, small, text)
        config.write_text(text)

    def run_all(self, commands):
        path = f"{self.folder}/build:{os.environ['PATH']}"
        for command in commands:
            small = command
            for pattern, replacement in SMALL_COMMAND:
                small = re.sub(pattern, replacement, small)
            with self.subTest(command):
                if "/torchrun " in command and not PYTHON or "mpirun " in command and not shutil.which("mpirun"):
                    continue
                result = subprocess.run(
                    ["bash", "-euc", small], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, encoding="utf-8", timeout=300
                )
                self.assertEqual(result.returncode, 0, f"{small}\n{result.stderr}")

    def run_document(self, name, least):
        commands = commands_of((REPOSITORY / name).read_text())
        self.assertGreaterEqual(len(commands), least)
        self.run_all(commands)

    def test_what_is_a_command(self):
        text = "A\n\n    penstock plan a \\\n      --b    # c\n    .venv/bin/python x.py\n    python3 examples/docstrings.py --out x\n\n```\nbuild/penstock check\n```\npenstock no\n"
        self.assertEqual(commands_of(text), ["penstock plan a --b", "python3 examples/docstrings.py --out x", "build/penstock check"])
        shown = "```console\n$ penstock compile > a\npenstock rules 1\n```\n```\npenstock rules 1\n```\n"
        self.assertEqual(commands_of(shown), ["penstock compile > a", "penstock rules 1"])

    def test_what_is_shown_output(self):
        text = "```console\n$ penstock a\nx 1\n...\nz\n$ penstock b\n```\n```\n$ penstock c\n```\n"
        self.assertEqual(shown_outputs(text), [("penstock a", "x 1\n...\nz\n"), ("penstock b", "")])
        self.assertTrue(is_output("x ... 2\n...\nz\n", "x 1 2\ny\nz\n"))
        self.assertFalse(is_output("x ... 2\n...\nz\n", "x 1 2\ny\nz\nw\n"))
        self.assertFalse(is_output("x ... 2\nz\n", "x 1\n2\nz\n"))

    def test_shown_output(self):
        shown = [pair for path in sorted(REPOSITORY.glob("docs/**/*.md")) for pair in shown_outputs(path.read_text())]
        self.assertGreaterEqual(len(shown), 6)
        path = f"{self.folder}/build:{os.environ['PATH']}"
        for command, output in shown:
            with self.subTest(command):
                result = subprocess.run(
                    ["bash", "-euc", command], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, encoding="utf-8", timeout=300
                )
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertTrue(is_output(output, result.stdout), f"shown:\n{output}\nprinted:\n{result.stdout}")

    def test_glossary_paths(self):
        rows = [line for line in (REPOSITORY / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
        self.assertGreater(len(rows), 50)
        for row in rows:
            for path in re.findall(r"`(\w+/[\w/.]+)`", row.rpartition(" | ")[2]):
                with self.subTest(row.split(" | ")[0]):
                    self.assertTrue((REPOSITORY / path).is_file() or any((REPOSITORY / "src").glob(f"**/{path}")), path)

    def test_the_chart_is_of_its_table(self):
        drawn = subprocess.run([sys.executable, REPOSITORY / "site/performance_chart.py"], capture_output=True, encoding="utf-8", check=True).stdout
        self.assertEqual(drawn, (REPOSITORY / "docs/performance.svg").read_text())

    def test_readme(self):
        self.run_document("README.md", 8)

    def test_planning(self):
        self.run_document("docs/planning.md", 8)

    def test_papers(self):
        """The commands of a paper need none of another's, so of a fifth of the papers they are run."""
        papers = [commands_of(paper) for paper in re.split(r"^(?=### )", (REPOSITORY / "docs/papers.md").read_text(), flags=re.MULTILINE)[1:]]
        self.assertGreaterEqual(sum(map(len, papers)), 150)
        for commands in sampled(papers, len(papers) // 5):
            self.run_all(commands)

    def test_other_documents(self):
        """A third of them, but not those whose commands read what their code or scripts write: python.docs_test runs both."""
        named = ("planning.md", "papers.md", "pytorch.md", "my_schedule.md")
        others = sorted(p.relative_to(REPOSITORY) for p in REPOSITORY.glob("docs/**/*.md") if p.name not in named)
        self.assertTrue(others)
        for name in sampled(others, len(others) // 3):
            self.run_document(name, 0)
            shutil.rmtree(self.folder / "runs", ignore_errors=True)  # another document's runs may have the same names
            for measured in self.folder.glob("*.json"):
                measured.unlink()

    def test_help(self):
        commands = re.findall(r"^  ([a-z]+) {2,}", run("--help").out, re.MULTILINE)
        examples = []
        for command in [*([c] for c in commands), ["schedule", "search"], ["schedule", "compare"]]:
            found = examples_of(run(*command, "--help").out)
            self.assertTrue(found, command)
            examples += found
        self.run_all([*BEFORE_HELP, *examples])


if __name__ == "__main__":
    unittest.main()
