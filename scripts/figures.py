#!/usr/bin/env python3
"""Figures of the sources, for comparing before and after: scripts/figures.py [ROOT] [--against OTHER_ROOT] [--longest N]

Per folder: lines, comment lines, casts (static_cast and reinterpret_cast). Of all: the longest functions and classes with their lines, classes by
the number of data members, and names that several headers define in one namespace (there must be none). It reads clang-formatted text, not C++: a
function or class ends at the brace in the column of its first line.
"""
import argparse
import collections
import pathlib
import re

TOP = ["src", "cli", "include"]
CONTROL = re.compile(r"^\s*(if|for|while|switch|do|else|try|catch|namespace|enum|union|extern|return|case|default)\b")
CLASS = re.compile(r"^(\s*)(?:template <.*> )?(class|struct) (\w+)(?: final)?(?: : [^;{]*)? \{$")
CAST = re.compile(r"\b(?:static|reinterpret)_cast<")


def sources(root):
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp", ".inl"):
                yield path, path.read_text().splitlines()


def end_of(lines, first, indent):
    for i in range(first + 1, len(lines)):
        if re.match(rf"^{indent}\}}", lines[i]):
            return i
    return first


def functions(lines):
    """(name, lines) of each definition with a body of several lines, outside of classes or in one."""
    seen = set()
    for i, line in enumerate(lines):
        if not line.endswith("{"):
            continue
        begin = i  # the signature's first line: what follows is indented further, or begins the members' initialisers
        while begin > 0 and (re.match(r"\s{4,}\S", lines[begin]) or lines[begin].lstrip().startswith(": ")):
            begin -= 1
        signature = " ".join(lines[begin : i + 1])
        found = re.match(r"^((?:  )?)(?:[\w:<>,&*\[\]]+ )*([\w:~]+|[\w:]*operator\S+)\(", lines[begin])
        if not found or CONTROL.match(lines[begin]) or " = [" in signature or signature.count("(") != signature.count(")"):
            continue
        end = end_of(lines, i, found.group(1))
        if begin in seen:
            continue
        seen.add(begin)
        if end > i and lines[end] == found.group(1) + "}":
            yield found.group(2), end - begin + 1


def classes(lines):
    """(name, lines, data members)."""
    for i, line in enumerate(lines):
        found = CLASS.match(line)
        if not found:
            continue
        indent = found.group(1)
        end = end_of(lines, i, indent)
        member = re.compile(rf"^{indent}  (?!using|return|friend|static|template|//)[\w:<>,&*\[\] ]+ \w+(?: = [^()]*|\{{[^()]*\}})?(?:, \w+[^()]*)?;")
        yield found.group(3), end - i + 1, sum(bool(member.match(l)) for l in lines[i + 1 : end])


def defined_names(lines):
    """Types that a header defines outside of classes, with their namespace."""
    namespace = []
    for line in lines:
        if found := re.match(r"^(?:inline )?namespace ?([\w:]*) ?\{", line):
            namespace.append(found.group(1))
        elif re.match(r"^\}  // namespace", line) and namespace:
            namespace.pop()
        elif found := re.match(r"^(?:class|struct|enum class|union) (\w+)(?: [:{]|$)(?!.*;$)", line):
            yield "::".join([*namespace, found.group(1)])


def figures(root):
    folders = collections.defaultdict(collections.Counter)
    longest, largest, headers = [], [], collections.defaultdict(set)
    for path, lines in sources(root):
        name = path.relative_to(root)
        count = folders["/".join(name.parts[:2]) if name.parts[0] == "src" else name.parts[0]]
        count["files"] += 1
        count["lines"] += len(lines)
        count["comments"] += sum(bool(re.match(r"^\s*//", line)) for line in lines)
        count["casts"] += sum(len(CAST.findall(line)) for line in lines)
        longest += [(size, f"{function} ({name})") for function, size in functions(lines)]
        largest += [(size, members, f"{of} ({name})") for of, size, members in classes(lines)]
        if path.suffix == ".h":
            for of in defined_names(lines):
                headers[of].add(str(name))
    total = sum(folders.values(), collections.Counter())
    return folders, total, sorted(longest, reverse=True), sorted(largest, reverse=True), {n: f for n, f in headers.items() if len(f) > 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--longest", type=int, default=10)
    options = parser.parse_args()
    folders, total, longest, largest, doubled = figures(options.root)
    before = figures(options.against) if options.against else None
    keys = ["files", "lines", "comments", "casts"]
    print(f"{'':24}" + "".join(f"{key:>10}" for key in keys))
    for name, count in [*sorted(folders.items()), ("all", total)]:
        print(f"{name:24}" + "".join(f"{count[key]:10}" for key in keys))
    if before:
        print(f"{'before':24}" + "".join(f"{before[1][key]:10}" for key in keys))
    for title, rows in [("functions", longest), ("classes", [(size, f"{of}, {members} members") for size, members, of in largest])]:
        print(f"\nLongest {title}:")
        for size, of in rows[: options.longest]:
            print(f"{size:6}  {of}")
        print(f"{sum(size > (50 if title == 'functions' else 200) for size, _ in rows):6}  are longer than {50 if title == 'functions' else 200} lines")
    print("\nNames that several headers define:", ", ".join(f"{n} ({', '.join(sorted(f))})" for n, f in doubled.items()) or "none")


if __name__ == "__main__":
    main()
