#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pairs to train on that lie on most machines: functions of Python's library, and the first paragraphs of their docstrings.

usage: docstrings.py --out FILE.jsonl [FOLDER ...]

Each line is an object: `input` is a function's source without the lines of its docstring, moved to the left; `target` is the first paragraph of the
docstring, in one line. Files are read in the order of their names and nothing is run, so that a folder always gives the same pairs. Without a folder it
is the library of the Python that runs this.
"""

import argparse
import ast
import itertools
import json
import pathlib
import sys
import sysconfig

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}  # folders of the library


def pairs(source):
    """The pairs of one file, in the order of its functions; none of what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # ValueError: it has a NUL
        return []
    lines = source.split("\n")
    found = {}  # by the number of the function's first line
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        lines_of_text = (ast.get_docstring(node) or "").split("\n")
        paragraph = " ".join(line.strip() for line in itertools.takewhile(str.strip, lines_of_text))
        if not paragraph:
            continue
        docstring = node.body[0]
        kept = lines[node.lineno - 1 : docstring.lineno - 1] + lines[docstring.end_lineno : node.end_lineno]
        moved = [line[min(node.col_offset, len(line) - len(line.lstrip(" \t"))) :] for line in kept]
        text = "\n".join(moved).rstrip("\n")
        if text:
            found[node.lineno] = {"input": text, "target": paragraph}
    return [found[line] for line in sorted(found)]


def pairs_of_folders(folders):
    for folder in folders:
        for file in sorted(pathlib.Path(folder).rglob("*.py")):
            if not LEFT_OUT & set(file.relative_to(folder).parts):
                yield from pairs(file.read_text(encoding="utf-8", errors="replace"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", default=[sysconfig.get_paths()["stdlib"]])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE.jsonl")
    options = parser.parse_args()
    for folder in options.folders:
        if not pathlib.Path(folder).exists():
            sys.exit(f"there is no {folder}")
    lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs_of_folders(options.folders)]
    if not lines:
        sys.exit(f"no function in {', '.join(options.folders)} has a docstring")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} pairs in {options.out}")


if __name__ == "__main__":
    main()
