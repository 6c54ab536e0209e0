# SPDX-License-Identifier: Apache-2.0
"""The text of --help, in one style; manual pages and completions, which are made of the same tree; and progress and notes where they are asked for."""

import functools
import re
import shutil
import subprocess
import unittest

from support import PROGRAM, ProgramTest, run


@functools.cache
def help_of(*path):
    return run(*path, "--help").out


def commands(*path):
    """Every command below this one, and itself."""
    below = re.findall(r"^  ([a-z]+) {2,}", help_of(*path), re.MULTILINE)
    return [path, *(found for name in below for found in commands(*path, name))]


ALL = commands()


def options(path):
    """{option: (its value, its meaning)} as --help shows them."""
    out, last = {}, None
    for line in help_of(*path).partition("\nExample:")[0].splitlines():
        if found := re.match(r"^  (-\S+)(?: (\S+(?: \.\.\.)?))?(?: {2,}(.*))?$", line):
            last = found[1].split(",")[-1]
            out[last] = (found[2] or "", found[3] or "")
        elif last and line.startswith(" " * 28):
            value, meaning = out[last]
            out[last] = (value, f"{meaning} {line.strip()}".strip())
        else:
            last = None
    return out


class Help(ProgramTest):
    def test_one_style(self):
        self.assertGreater(len(ALL), 20)
        for path in ALL:
            text = help_of(*path)
            self.assertRegex(text, "(?s)^[A-Z].*\n\nUsage: penstock.*\nExample:\n  penstock ")
            for line in text.splitlines():
                self.assertLessEqual(len(line), 100, (path, line))
            for name, (_, meaning) in options(path).items():
                self.assertRegex(meaning, r"^[A-Z]", (path, name))
                self.assertNotRegex(meaning, r"\.$", (path, name))

    def test_one_name_for_one_thing(self):
        """An option of a name takes the same kind of value and, where that is said, has the same default in each command."""
        kinds = {}
        for path in ALL:
            for name, (value, _) in options(path).items():
                kinds.setdefault(name, {}).setdefault(value.removesuffix(" ..."), path)
        apart = {name: found for name, found in kinds.items() if len(found) > 1}
        # A folder or a file; a cluster that may be this machine; devices of actors or actors; a file of figures; activations or bytes; a run or its timeline.
        self.assertEqual(set(apart), {"--out", "--cluster", "--straggler", "--figures", "--parameters", "--against"}, apart)
        bare = {}
        for name in kinds:
            bare.setdefault(name.replace("-", ""), []).append(name)
        self.assertFalse({key: names for key, names in bare.items() if len(names) > 1})
        for path in ALL:
            for name in ("--memory-limit", "--microbatch-sizes", "--activation-limit", "--seconds", "--latency", "--device", "--dtype"):
                if name in options(path):
                    self.assertRegex(options(path)[name][1], r"\[[^\]]+\]$", (path, name))

    def test_groups(self):
        self.assertIn("\nTrain a model and use it:\n  train ", run("--help").out)
        for group in ("What", "Schedule", "Model and training", "Where it runs", "Output"):
            self.assertIn(f"\n{group}:\n  ", run("train", "--help").out)

    def test_manual_pages(self):
        for path in ALL:
            page = run("man", *path)
            self.assertEqual(page.code, 0, page.err)
            self.assertIn('.TH "PENSTOCK', page.out)
            self.assertEqual(re.findall(r"^\.SS (.*)$", page.out, re.MULTILINE)[-1], "Options")  # as --help has them
            for name in options(path):
                self.assertIn(name.replace("-", "\\-"), page.out, path)
        if shutil.which("groff"):
            pages = "".join(run("man", *path).out for path in ALL)
            set_ = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=pages, capture_output=True, text=True)
            self.assertEqual((set_.returncode, set_.stderr), (0, ""))
            self.assertIn("EXIT STATUS", re.sub(".\x08", "", set_.stdout))  # bold letters are struck twice

    def test_progress_where_it_is_asked_for(self):
        log = self.folder / "log.txt"
        quiet = self.train("quiet", 3, "--quiet", "--log-file", log)
        self.assertEqual(quiet.err, "")
        lines = log.read_text().splitlines()
        self.assertTrue(all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S", line) for line in lines), lines)
        self.assertEqual([bool(re.search(rf" step {step}/3  loss ", log.read_text())) for step in (1, 2, 3)], [True] * 3)
        verbose = self.train("verbose", 3, "--verbose")
        self.assertEqual(re.findall(r"^step (\d)/3", verbose.err, re.MULTILINE), ["1", "2", "3"])
        launched = run("launch", "-n", 2, "--log-file", log, "--", *self.train_arguments("run", 1, "--backend", "gloo", "--actors", 2))
        self.assertEqual((launched.code, launched.err), (0, ""))
        self.assertIn("step 1/1", (self.folder / "log.txt.0").read_text())


class Completion(ProgramTest):
    def script(self, shell):
        path = self.folder / f"penstock.{shell}"
        path.write_text(run("completion", shell).out)
        return path

    def completed(self, *words):
        """The words that bash offers for the last one."""
        line = " ".join(f"'{word}'" for word in ("penstock", *words))
        code = f"source {self.script('bash')}; complete -p penstock >/dev/null; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _penstock; echo \"${{COMPREPLY[@]}}\""
        result = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash(self):
        self.assertEqual(self.completed("tra"), ["train"])
        self.assertEqual(set(self.completed("schedule", "s")) & {"search", "slimpipe"}, {"search", "slimpipe"})
        self.assertEqual(self.completed("schedule", "search", "--activ"), ["--activation-limit"])
        self.assertEqual(self.completed("train", "--dty"), ["--dtype"])
        self.assertEqual(self.completed("train", "--dtype", ""), ["f32", "f64", "bf16"])
        self.assertEqual(self.completed("train", "--steps", ""), [])  # files are offered then
        self.assertIn("zb-h1", self.completed("train", "--schedule", "z"))
        self.assertEqual(self.completed("completion", ""), ["bash", "zsh", "fish"])
        for path in ALL:
            self.assertEqual(set(self.completed(*path, "--")), {name for name in options(path) if name.startswith("--")}, path)

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is not installed")
        code = f"autoload -U compinit; compinit -u -D; source {self.script('zsh')}; echo $_comps[penstock]"
        result = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True)
        self.assertEqual((result.stdout, result.stderr), ("_penstock\n", ""))

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("fish is not installed")
        offered = lambda line: subprocess.run(["fish", "--no-config", "-c", f"source {self.script('fish')}; complete -C '{line}'"], capture_output=True, text=True)
        for line, words in [("penstock tra", {"train"}), ("penstock train --dty", {"--dtype"}), ("penstock train --dtype ", {"f32", "f64", "bf16"}),
                            ("penstock schedule search --activ", {"--activation-limit"})]:  # fmt: skip
            result = offered(line)
            self.assertEqual(result.stderr, "", line)
            self.assertEqual({row.split("\t")[0] for row in result.stdout.splitlines()}, words, line)


if __name__ == "__main__":
    unittest.main()
