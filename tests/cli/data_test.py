# SPDX-License-Identifier: Apache-2.0
"""penstock data: files of tokens, histograms, and training on all of them; and the set that examples/docstrings.py makes."""

import json
import pathlib
import struct
import subprocess
import sys
import textwrap
import unittest

from support import ProgramTest, run

TESTS = pathlib.Path(__file__).resolve().parents[1]
TOKENIZERS = TESTS / "golden/tokenizer"

MODEL = ["--set", "model.layers=2", "--set", "model.width=16", "--set", "model.heads=2", "--set", "model.context=32", "--batch", 4,
         "--microbatches", 2, "--set", "validation_batches=1", "--dtype", "f64"]  # fmt: skip


DOCSTRINGS = TESTS.parent / "examples/docstrings.py"

# A file of functions, and what is said of it: those with a docstring, each without it and moved to the left.
FUNCTIONS = '''import os
class A:
    @property
    def b(self, x="a:b",
          y=')'):  # def no(): "no"
        """Gives b,
        or what is there.

        No more of it."""
        # kept
        def inner():
            r"Is \\n inside."
            return """
def fake():
    "no"
"""
        return x

    async def c(self): return 1
    def d(self):
        b"no docstring"
    def e(self):
        'One' ' two'
def f():
    u"Only \\"this\\"."

x = 1
'''
FOUND = [
    ("Gives b, or what is there.", '''def b(self, x="a:b",
      y=')'):  # def no(): "no"
    # kept
    def inner():
        r"Is \\n inside."
        return """
def fake():
"no"
"""
    return x'''),
    ("Is \\n inside.", '''def inner():
    return """
def fake():
"no"
"""'''),
    ("One two", "def e(self):"),
    ('Only "this".', "def f():"),
]  # fmt: skip


class Data(ProgramTest):
    def made(self, *arguments):
        result = run("data", *arguments)
        self.assertEqual(result.code, 0, result.err)
        return result

    def path(self, name):
        return self.folder / name

    def lines(self, name):
        return [json.loads(line) for line in self.path(name).read_text().splitlines()]

    def docstrings(self, *arguments):
        return subprocess.run([sys.executable, DOCSTRINGS, *arguments], capture_output=True, text=True, check=False)

    def test_docstrings(self):
        sources = self.path("sources")
        (sources / "tests").mkdir(parents=True)
        (sources / "b.py").write_text(FUNCTIONS)
        (sources / "a.py").write_text('def a():\n    "First."\n')
        for name, text in {"c.py": "def f(", "d.py": "def f():\n  '\0'", "e.py": "", "tests/f.py": 'def f(): "Left out."', "g.txt": FUNCTIONS}.items():
            (sources / name).write_text(text)
        made = self.docstrings(sources, "--out", self.path("new/d.jsonl"))
        self.assertEqual((made.returncode, made.stdout), (0, f"5 pairs in {self.path('new/d.jsonl')}\n"), made.stderr)
        self.assertEqual([(pair["target"], pair["input"]) for pair in self.lines("new/d.jsonl")], [("First.", "def a():"), *FOUND])
        nothing = self.docstrings(sources / "tests/f.py", "--out", self.path("x.jsonl"))
        self.assertEqual((nothing.returncode, nothing.stderr), (1, f"no function in {sources}/tests/f.py has a docstring\n"))

    def pairs(self):
        lines = [{"input": "a" * (i % 7 + 1), "target": "b" * (i % 3)} for i in range(40)]
        self.path("p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.path("p.jsonl")

    def test_lengths_are_shown(self):
        report = self.made("show", self.pairs(), "--pairs", "--context", 6, "--json").json()
        self.assertEqual(report["format"], 1)
        inputs = [i % 7 + 1 for i in range(40)]
        targets = [i % 3 for i in range(40)]
        self.assertEqual({key: report["input"][key] for key in ("count", "total", "p50", "most")},
                         {"count": 40, "total": sum(inputs), "p50": sorted(inputs)[19], "most": 7})  # fmt: skip
        self.assertEqual(report["target"]["histogram"], [targets.count(0), targets.count(1), targets.count(2)])
        both = [a + b for a, b in zip(inputs, targets, strict=True)]
        self.assertEqual(report["both"]["total"], sum(both))
        self.assertEqual(report["cut"]["sequences"], sum(length > 6 for length in both))
        self.assertEqual(report["cut"]["tokens"], sum(max(length - 6, 0) for length in both))
        self.assertAlmostEqual(report["cut"]["padding"], 1 - sum(min(length, 6) for length in both) / (6 * 40))
        text = self.made("show", self.pairs(), "--pairs", "--context", 6).out
        self.assertEqual(text, textwrap.dedent("""\
            tokens of  count  total  mean  p10  p50  p90  p99  most
            input         40    155   3.9    1    4    7    7     7
            target        40     39   1.0    0    1    2    2     2
            both          40    194   4.8    2    5    8    8     9

            tokens   input                            target                            both
            0            0                                14  ########################     0
            1            6  #######                       13  #######################      2  ###
            2 to 3      12  ##############                13  #######################     10  ###########
            4 to 7      22  ########################       0                              23  ########################
            8 to 15      0                                 0                               5  ######

            a context of 6 tokens cuts 10 sequences by 16 tokens; padded to it, 25.8 % is padding
            """))  # fmt: skip

    def train(self, out, *arguments, steps=4):
        result = run("train", *MODEL, *arguments, "--steps", steps, "--out", self.path(out))
        self.assertEqual(result.code, 0, result.err)
        return [json.loads(line)["loss"] for line in (self.path(out) / "metrics.jsonl").read_text().splitlines()]

    def test_tokens_train_as_their_text_does(self):
        for tokenizer, vocabulary in (("bytes", 256), (TOKENIZERS / "llama.json", 512), (TOKENIZERS / "pieces.model", 400)):
            common = ["--set", f"data.tokenizer={tokenizer}", "--set", f"model.vocabulary={vocabulary}", "--set", "batch.planner=dynapipe"]
            text = self.path("t.jsonl")
            text.write_text("".join(json.dumps({"text": f"The stage {i} of a pipeline. " * (i % 5 + 1)}) + "\n" for i in range(30)))
            self.made("tokens", text, "--tokenizer", tokenizer, "--out", self.path("t.bin"))
            documents = [self.train(f"{kind}-{vocabulary}", *common, "--set", f"data.documents={self.path(f't.{kind}')}") for kind in ("jsonl", "bin")]
            self.assertEqual(*documents)
            self.made("tokens", self.pairs(), "--pairs", "--tokenizer", tokenizer, "--out", self.path("p.bin"))
            pairs = [self.train(f"pairs-{kind}-{vocabulary}", *common, "--set", f"data.pairs={self.path(f'p.{kind}')}") for kind in ("jsonl", "bin")]
            self.assertEqual(*pairs)

    def test_a_file_as_others_write_it(self):
        """A file of nanoGPT has two bytes a token, documents end with a token, no index."""
        tokens = [token for i in range(30) for token in [40 + i] * (i % 9 + 1) + [0]]
        self.path("train.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        report = self.made("show", self.path("train.bin"), "--tokenizer", TOKENIZERS / "gpt2.json", "--json").json()
        self.assertEqual((report["sequence"]["count"], report["sequence"]["total"]), (30, len(tokens)))

    def test_generate_speaks_the_tokenizers_language(self):
        text = self.path("text.txt")
        text.write_text("The stages of a pipeline wait for one another, and so do their devices.\n" * 200)
        for name, vocabulary in (("llama.json", 512), ("pieces.model", 400)):
            out = f"run-{vocabulary}"
            self.train(out, "--set", f"data.tokenizer={TOKENIZERS / name}", "--set", f"model.vocabulary={vocabulary}", "--set", f"data.text={text}", steps=20)
            result = run("generate", self.path(out), "--prompt", "A stage", "--tokens", 20, "--json")
            self.assertEqual(result.code, 0, result.err)
            self.assertGreater(len(result.json()["text"]), 20, "tokens are longer than bytes")

    def test_another_tokenizer_is_other_data(self):
        text = ["--set", f"data.documents={TESTS.parent / 'docs'}", "--set", "model.vocabulary=512"]
        self.train("run", *text, "--set", f"data.tokenizer={TOKENIZERS / 'llama.json'}", steps=2)
        other = run("train", "--resume", self.path("run"), "--steps", 3, "--set", f"data.tokenizer={TOKENIZERS / 'qwen.json'}")
        self.assert_fails(other, "was trained on other data", "their names, sizes, contents or tokenizers differ")
        self.assertEqual(run("train", "--resume", self.path("run"), "--steps", 3).code, 0)

    def test_a_misspelled_command(self):
        result = run("data", "token", "--out", self.path("x.bin"))
        self.assertEqual((result.code, result.err), (2, 'error: penstock data has no command "token"\n  hint: did you mean "tokens"?\n'))

    def test_refused(self):
        def refused(*arguments):
            result = run("train", *MODEL, "--steps", 1, "--out", self.path("refused"), *arguments)
            self.assertEqual(result.code, 1, result.out)
            return result.err

        pairs = f"data.pairs={self.pairs()}"
        self.assertIn("both data.text and data.pairs are set", refused("--set", pairs, "--set", "data.text=README.md"))
        self.assertIn("both data.documents and data.pairs are set", refused("--set", pairs, "--set", "data.documents=README.md"))
        self.assertIn("model.vocabulary is 256; tokenizer " + str(TOKENIZERS / "qwen.json") + " has 482 tokens",
                      refused("--set", pairs, "--set", f"data.tokenizer={TOKENIZERS / 'qwen.json'}"))  # fmt: skip
        self.assertIn('there is no tokenizer "words"', refused("--set", "data.tokenizer=words"))
        self.assertIn("is no SentencePiece model", refused("--set", f"data.tokenizer={self.written('x.model', 'x')}"))
        self.assertIn("this is not JSON", refused("--set", f"data.tokenizer={self.written('x.json', 'x')}"))
        self.assertIn("o.bin has 3 bytes, no multiple of 2", self.odd_file(refused))
        for arguments, message in (
            (["tokens", self.pairs(), "--out", self.path("x.jsonl")], "is no name of a file of tokens"),
            (["show", self.path("nothing.jsonl")], "No such file or directory"),
            (["show", self.written("t.txt", "words"), "--pairs"], "t.txt has no pairs"),
        ):  # fmt: skip
            self.assert_fails(run("data", *arguments), message)

    def written(self, name, text):
        self.path(name).write_text(text)
        return self.path(name)

    def odd_file(self, refused):
        self.path("o.bin").write_bytes(b"abc")
        self.path("o.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 1, 0, 0, 1))
        return refused("--set", f"data.documents={self.path('o.bin')}")


if __name__ == "__main__":
    unittest.main()
