# SPDX-License-Identifier: Apache-2.0
"""Puts the site's source together: assemble.py PROGRAM FOLDER

What people write is in docs/ and copied; what the program says of itself (its commands, keys and schedules) is asked of it, so that it is never old.
"""

import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]

# These options draw schedules that are not drawn with four actors and eight micro-batches.
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


def signature(name, node, bound):
    """How a function or method is called, and what it gives; `bound`: its first argument is not given. A property is named."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return name + returns.replace(" ->", ":")
    arguments = ast.unparse(node.args)
    if bound:
        arguments = arguments.partition(", ")[2]
    if len(name + arguments + returns) > 100:
        arguments = "\n    " + re.sub(r", (?=\*{0,2}\w+(?:: |=|,|$)|\*,)", ",\n    ", arguments)
    return f"{name}({arguments}){returns}"


def described(node, level, name, bound=False):
    """A class or function of the package with its docstring, and a class's public methods."""
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)} if isinstance(node, ast.ClassDef) else {}
    shown = methods.get("__init__") if methods else node if isinstance(node, ast.FunctionDef) else None
    head = f"```python\n{signature(name, shown, bound or bool(methods))}\n```\n\n" if shown else ""
    text = f"{'#' * level} `{name}`\n\n{head}{ast.get_docstring(node) or ''}\n"
    for of, method in methods.items():
        if ast.get_docstring(method) and (not of.startswith("_") or of == "__call__"):
            text += "\n" + described(method, level + 1, of, bound=not any("staticmethod" in ast.unparse(d) for d in method.decorator_list))
    return text


def python_reference():
    """All that `penstock` offers, by its own docstrings, read from the source: PyTorch and the engine need not be there."""
    package = REPOSITORY / "python/penstock"
    homes = next(ast.literal_eval(node.value) for node in ast.parse((package / "__init__.py").read_text()).body
                 if isinstance(node, ast.Assign) and node.targets[0].id == "_HOMES")
    page = ["# Python\n\nWhat the package `penstock` offers. [Modules of PyTorch](../docs/pytorch.md) and [five minutes](../docs/start_python.md) explain it.\n"]
    for name, home in sorted((name, home) for home, names in homes.items() for name in names.split()):
        tree = ast.parse((package / f"{home}.py").read_text())
        node = next(n for n in tree.body if getattr(n, "name", None) == name)
        page.append(described(node, 2, name))
    return "\n".join(page)


SMALL = ("--set", "layers=2", "--set", "width=16", "--set", "heads=2", "--set", "context=16", "--batch", "16", "--microbatches", "4", "--text", "docs/glossary.md")
# Each command's JSON and the files that commands write, as commands of a second or less print them.
OUTPUTS = [
    ("penstock simulate TABLE --json", ["simulate", "1f1b", "--json"]),
    ("penstock simulate CONFIG --json", ["simulate", "gpt.toml", "--figures", "v100", "--network", "nvlink2", "--json"]),
    ("penstock schedule list --json", ["schedule", "list", "--json"]),
    ("penstock schedule NAME --json", ["schedule", "1f1b", "--json"]),
    ("penstock schedule compare --json", ["schedule", "compare", "--actors", "2", "--microbatches", "4", "--json"]),
    ("penstock schedule search --json", ["schedule", "search", "--actors", "2", "--microbatches", "4", "--seconds", "0.5", "--json"]),
    ("penstock verify --json", ["verify", "mine.csv", "--json"]),
    ("penstock plan --json", ["plan", "gpt", "--devices", "2", "--bandwidth", "1e10", "--json"]),
    ("penstock check --json", ["check", *SMALL, "--json"]),
    ("penstock size --json", ["size", "--overhead", "0.1", "--gpus", "8", "--alpha", "0.1", "--json"]),
    ("penstock papers --json", ["papers", "--json"]),
]
FILES = [
    ("RUN/metrics.jsonl, a line a step", "run/metrics.jsonl", ["train", *SMALL, "--steps", "2", "--out", "run"]),
    ("a plan: `plan --out`", "plan.json", ["plan", "gpt", "--devices", "2", "--bandwidth", "1e10", "--out", "plan.json"]),
    ("measured costs: `profile --out`", "costs.json", ["profile", *SMALL, "--rounds", "1", "--out", "costs.json"]),
    ("a timeline: `simulate --timeline`, in the form of Chrome's trace events", "timeline.json", ["simulate", "1f1b", "--timeline", "timeline.json"]),
]
KINDS = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "null"}


def form(value, indent=""):
    """The keys of a JSON value with what kind each has; of a list that of its elements, all that occur."""
    if isinstance(value, list):
        elements = [e for e in value if isinstance(e, dict)]
        if elements:
            return f"list of\n{form({key: e[key] for e in reversed(elements) for key in e}, indent)}"
        return f"list of {form(value[0], indent)}" if value else "list"
    if not isinstance(value, dict):
        return KINDS[type(value)]
    lines = []
    for key, inner in value.items():
        kind = form(inner, indent + "  ")
        lines.append(f"{indent}{key}: {kind}" if not isinstance(inner, dict) or not inner else f"{indent}{key}:\n{kind}")
    return "\n".join(lines)


def files_and_json(penstock):
    page = ["# Files and JSON\n\nWhat commands print with `--json`, one object each, and the JSON that they write; all by running them, so each key is one that is there. "
            "Times are seconds where a command computes or measures, and the costs' own unit for tables; sizes are bytes.\n\n"
            "Other forms: [tables](../docs/tables.md#a-schedule-of-your-own) (`.csv`) and rules (`.rules`), [clusters](../docs/planning.md#the-cluster) (`.toml`), "
            "[configurations](configuration.md) (`.toml`), checkpoints (safetensors), and programs and graphs, which [a worked example](../docs/worked_example.md) shows.\n"]
    (penstock.folder / "mine.csv").write_text(penstock("schedule", "1f1b"))
    (penstock.folder / "gpt.toml").write_text(penstock("config", *SMALL))
    for title, command in OUTPUTS:
        page.append(f"## {title}\n\n```text\n{form(json.loads(penstock(*command)))}\n```\n")
    for title, file, command in FILES:
        penstock(*command)
        text = (penstock.folder / file).read_text()
        page.append(f"## {title}\n\n```text\n{form(json.loads(text.splitlines()[0] if file.endswith('jsonl') else text))}\n```\n")
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
    (reference / "python.md").write_text(python_reference())
    (reference / "cpp.md").write_text('# C++\n\n<a href="../cpp/index.html">All declarations of include/penstock</a>, with what their comments say; '
                                      "[Penstock as a library](../docs/library.md) shows how they go together.\n")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "docs").symlink_to(REPOSITORY / "docs")
        (reference / "files.md").write_text(files_and_json(Program(program, pathlib.Path(folder))))
    (source / "schedules").mkdir()
    (source / "schedules/index.md").write_text(schedules(penstock, source / "schedules"))
    (source / "timeline.json").unlink()


if __name__ == "__main__":
    main()
