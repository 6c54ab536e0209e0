#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Figures of the sources, for comparing before and after: scripts/figures.py [ROOT] [--against OTHER_ROOT] [--longest N] [--library L]

Per folder: lines, lines of code (neither blank nor all comment), comment lines, casts (static_cast and reinterpret_cast). Of all: the longest and the
mean line of code, functions with more than five parameters, the longest functions and classes with their lines, classes by the number of data
members, options of pipeline.* by the structs that have a member of that name, words of the glossary with several meanings, functions that a folder
below the one that defines them calls, and names that several headers define in one namespace (there must be none). It reads clang-formatted text, not
C++: a function or class ends at the brace in the column of its first line; which folder defines a function the library's symbols say.
"""
import argparse
import collections
import pathlib
import re
import subprocess

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


def parameters(signature):
    """How many the function's first parentheses hold: commas that no inner bracket has."""
    depth = count = 0
    for c in signature[signature.index("(") + 1 :]:
        if depth == 0 and c == ")":
            break
        depth += (c in "([{<") - (c in ")]}>")
        count += c == "," and depth == 0
    return 0 if re.search(r"\(\)", signature.split("{")[0]) and count == 0 else count + 1


def functions(lines):
    """(name, lines, parameters) of each definition with a body of several lines, outside of classes or in one."""
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
            yield found.group(2), end - begin + 1, parameters(signature[found.start(2) :])


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


def is_code(line):
    return bool(line.strip()) and not re.match(r"^\s*//", line)


def layers(root):
    """The folders, lowest first: the rows of the table in docs/architecture.md."""
    return re.findall(r"^\| `(?:src(?:/\w+)?|include)/(\w+)` \|", (root / "docs/architecture.md").read_text(), re.MULTILINE)


def folder_of(member, root):
    """The folder of an object in the core's library: several files of a folder are compiled as one."""
    if found := re.match(r"unity_(\w+?)_\d+_cxx", member):
        return found.group(1)
    apart = ("models", "planners", "report", "data", "devices", "profile")  # folders with files that are compiled by themselves
    return next((folder for folder in apart if any((root / "src").glob(f"*/{folder}/{member.removesuffix('.o')}"))), "penstock")  # texts as data


def upward_calls(root, library):
    """(folder, function, folder that defines it) where the first is below the other: headers of include/penstock hide which folder that is."""
    order = {name: i for i, name in enumerate(layers(root))}
    defined, called, folder = {}, collections.defaultdict(set), ""
    for line in subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(".o:"):
            folder = folder_of(line[:-1], root)
        elif (found := re.match(r".{17}(\w) (.*)", line)) and found.group(1) in "TU":
            function = re.sub(r"\[abi:\w+\]|penstock::", "", found.group(2)).split("(")[0]
            if found.group(1) == "T":
                defined[found.group(2)] = folder
            else:
                called[found.group(2), function].add(folder)
    return sorted({(folder, function, defined[symbol]) for (symbol, function), folders in called.items() if symbol in defined
                   for folder in folders if order[defined[symbol]] > order[folder]})  # fmt: skip


def carriers(root):
    """By option of pipeline.*: the structs that hand it on, those of options, arguments and inputs that have a member of its name. Results have
    such members too (a table its slices), and carry nothing."""
    keys = (root / "src/front/config/config_keys.cpp").read_text()
    options = root / "src/order/schedule/options.cpp"  # the options of tables, of which most are keys
    names = set(re.findall(r'"pipeline", "(\w+)"', keys)) | set(re.findall(r'^    \{"(\w+)"', options.read_text() if options.exists() else "", re.MULTILINE))
    out = collections.defaultdict(set)
    for path, lines in sources(root):
        for i, line in enumerate(lines):
            if (found := CLASS.match(line)) and re.search(r"(Options|Arguments|Limits|Input)$|^(Pipeline|Prepared)$", found.group(3)):
                body = " ".join(re.sub(r"//.*", "", l) for l in lines[i + 1 : end_of(lines, i, found.group(1))])
                for name in names & set(re.findall(r"\b(\w+)(?: = [^,;(){}]+| = \{\}|\{\})?[,;]", re.sub(r"\([^)]*\)|\{[^}]+\}", "", body))):
                    out[name].add(found.group(3))
    return out


def glossary(root):
    """By row: the words that it explains, without what qualifies them (in brackets, or behind "of" and "in"), and what it says that they are."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (root / "docs/glossary.md").read_text(), re.MULTILINE)
    return [([re.split(r" \(| of | in ", word)[0] for word in words.split(", ")], meaning) for words, meaning in rows if words != "word"]


def words_of_several_meanings(rows):
    """Words whose row gives them several meanings: by a number of things, by the word "also", or that elsewhere it is another thing."""
    several = re.compile(r"\b(?:two|three|four|several) (?:things|kinds|meanings|senses)\b|\banother thing\b|\balso\b", re.IGNORECASE)
    return [word for words, meaning in rows if several.search(meaning) for word in words]


def figures(root):
    folders = collections.defaultdict(collections.Counter)
    longest, largest, headers, widths, many = [], [], collections.defaultdict(set), [], []
    for path, lines in sources(root):
        name = path.relative_to(root)
        count = folders["/".join(name.parts[:-1][:3]) if name.parts[0] == "src" else name.parts[0]]
        count["files"] += 1
        count["lines"] += len(lines)
        count["code"] += sum(map(is_code, lines))
        widths += [len(line) for line in lines if is_code(line)]
        count["comments"] += sum(bool(re.match(r"^\s*//", line)) for line in lines)
        count["casts"] += sum(len(CAST.findall(line)) for line in lines)
        found = list(functions(lines))
        longest += [(size, f"{function} ({name})") for function, size, _ in found]
        many += [(parameters, f"{function} ({name})") for function, _, parameters in found if parameters > 5]
        largest += [(size, members, f"{of} ({name})") for of, size, members in classes(lines)]
        if path.suffix == ".h":
            for of in defined_names(lines):
                headers[of].add(str(name))
    total = sum(folders.values(), collections.Counter())
    doubled = {n: f for n, f in headers.items() if len(f) > 1}
    return folders, total, sorted(longest, reverse=True), sorted(largest, reverse=True), doubled, widths, sorted(many, reverse=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--longest", type=int, default=10)
    parser.add_argument("--library", help="build/libpenstock_core.a: its symbols say which folder calls which")
    options = parser.parse_args()
    folders, total, longest, largest, doubled, widths, many = figures(options.root)
    before = figures(options.against) if options.against else None
    keys = ["files", "lines", "code", "comments", "casts"]
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
    print(f"\nLines of code: the longest has {max(widths)} characters, the mean {sum(widths) / len(widths):.1f}")
    print(f"\nFunctions with more than five parameters: {len(many)}")
    for count, of in many[: options.longest]:
        print(f"{count:6}  {of}")
    carried = sorted(((len(by), name, by) for name, by in carriers(options.root).items() if len(by) > 1), reverse=True)
    print(f"\nOptions of pipeline.* that several structs carry: {len(carried)}")
    for count, name, by in carried[: options.longest]:
        print(f"{count:6}  {name} ({', '.join(sorted(by))})")
    words = words_of_several_meanings(glossary(options.root))
    print(f"\nWords of several meanings: {len(words)}\n        {', '.join(words)}")
    if options.library:
        upward = upward_calls(options.root, options.library)
        print(f"\nCalls up through public headers: {len(upward)}")
        for folder, name, home in upward:
            print(f"        {folder} calls {name} of {home}")
    print("\nNames that several headers define:", ", ".join(f"{n} ({', '.join(sorted(f))})" for n, f in doubled.items()) or "none")


if __name__ == "__main__":
    main()
