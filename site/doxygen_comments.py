# SPDX-License-Identifier: Apache-2.0
"""Prints a file with its comments as Doxygen reads them: doxygen_comments.py FILE

In a header a comment stands for all declarations of the paragraph that it begins, as a reader takes it; one behind a declaration is that
declaration's own. A class explains its constructors and its call, and a defaulted comparison explains itself. Indented lines of a comment
stay as they are. No line moves, so that Doxygen's line numbers are the header's. A document's names of headers become links to them.
"""

import html
import re
import sys
from dataclasses import dataclass, field

CLASS = re.compile(r"(?:template <.*> )?(?:class|struct) (\w+)")
BEHIND = re.compile(r"^(.*[;,{}\w]) {2,}// (.*)$")  # code, and its own comment
BREAK = r" \ilinebr "  # a line's end, for Doxygen alone


@dataclass
class Scope:
    name: str = ""  # of a class; of all else ""
    declares: bool = True  # not the body of a function
    comment: list = field(default_factory=list)  # of the paragraph that is being read


def header(lines):
    scopes, begins = [Scope()], True  # begins: whether a declaration may begin here
    for number, line in enumerate(lines):
        scope, text = scopes[-1], line.strip()
        if text.startswith("template") and "}  // namespace penstock" in lines[:number]:
            return  # what follows is the standard library's
        if text.startswith("// SPDX-"):
            yield ""
            continue
        if text.startswith("//"):
            before = lines[number - 1].strip() if number else ""
            scope.comment = [*(scope.comment if before.startswith("//") else []), text[2:]]
            ends = not lines[number + 1].strip() or lines[number + 1].startswith("#")
            yield described(scope.comment).replace("/**", "/** @file" + BREAK, 1) if ends and len(scopes) == 1 else ""
            continue
        if not text:
            scope.comment = []
            yield line
            continue
        if text == "namespace penstock {":
            yield "/** All of the library. */ " + line
            scopes.append(Scope())
            continue
        match = BEHIND.match(line)
        code, own = match.groups() if match else (line, "")
        if not scope.declares or not begins or text.startswith(("#", "}", "public:", "private:", "namespace")):
            yield f"{code}  {described([own], behind=True)}" if own and scope.declares else line
        elif own and not code.endswith(";"):
            yield f"{code}  {described([own], behind=True)}"
        else:
            comment = [own] if own else explained(code.strip(), scope)
            yield indent(code) + " ".join(described(comment) + part for part in declarations(code.strip()))
        begins = not text or bool(own) or code.endswith((";", "{", "}", ":")) or text.startswith("#")
        enter_and_leave(scopes, code)


def explained(code, scope):
    """Returns the comment of a declaration that has none behind it: its paragraph's, or what follows from the declaration."""
    if re.match(r"(constexpr )?(auto|bool) operator(<=>|==)\(.*= default;", code):
        return ["Compares member by member."]
    if scope.comment:
        return scope.comment
    if scope.name and re.match(rf"(constexpr )?(explicit )?~?{scope.name}\(", code) or "operator()(" in code:
        return [f"See the description of {scope.name}."]
    return []


def enter_and_leave(scopes, code):
    """Opens a scope for each brace that stays open in this line, and closes those that end in it."""
    opened = code.count("{") - code.count("}")
    for _ in range(opened):
        name = CLASS.match(code.strip())
        declares = bool(name) or code.strip().startswith(("namespace", "enum"))
        scopes.append(Scope(name[1] if name else "", declares and scopes[-1].declares))
    for _ in range(-opened):
        scopes.pop()


def declarations(code):
    """Returns one declaration for each name that `T a = 1, b = 2;` declares: Doxygen has a comment for each."""
    parts = top_level(code.rstrip(";")) if code.endswith(";") and not code.startswith("using") else [code]
    if len(parts) == 1:
        return [code]
    kind = re.match(r"[^={]*\s", re.sub(r"\s*([={].*)?$", "", parts[0]))[0]
    return [parts[0] + ";", *(f"{kind}{part};" for part in parts[1:])]


def top_level(code):
    """Splits at the commas that stand outside of all brackets."""
    parts, depth = [""], 0
    for letter in code:
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def described(comment, behind=False):
    """Returns the comment in one line, "" for none."""
    parts = []
    for line in (entry.removeprefix(" ") for entry in comment):
        kept = line.startswith("  ")
        if not parts or parts[-1][0] != kept:
            parts.append((kept, []))
        parts[-1][1].append(line)
    text = BREAK.join(f"\\verbatim{BREAK}{BREAK.join(part)}{BREAK}\\endverbatim" if kept else escaped(BREAK.join(part)) for kept, part in parts)
    return f"/**{'<' if behind else ''} {text} */ " if comment else ""


def escaped(text):
    """Returns the text with what Doxygen would take for commands and marks as it stands, and what is in backticks as code."""
    plain = re.sub(r"([*@#$%])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"`([^`]*)`", lambda code: f"<code>{code[1].replace(BREAK, ' ')}</code>", plain)


def indent(line):
    return line[: len(line) - len(line.lstrip())]


def document(lines):
    return (re.sub(r"`(?:penstock/)?(\w+\.h)`", r"[penstock/\1](@ref \1)", line) for line in lines)


if __name__ == "__main__":
    path = sys.argv[1]
    lines = open(path).read().splitlines()
    print("\n".join(header(lines) if path.endswith(".h") else document(lines)))
