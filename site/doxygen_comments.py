"""Prints a header with its comments as Doxygen reads them: doxygen_comments.py FILE

A comment stands for all declarations of the paragraph that it begins, as a reader takes it; one behind a declaration is that declaration's own.
"""

import re
import sys


def as_doxygen(lines):
    block, fresh, ended = [], True, True  # the paragraph's comment; whether nothing follows it yet; whether a declaration may begin
    for number, line in enumerate(lines):
        text = line.strip()
        if text.startswith("//"):
            if not fresh:
                block = []
            fresh = True
            block.append(escaped(line.replace("//", "///", 1)))
            if number + 1 < len(lines) and not lines[number + 1].strip():  # of no declaration: the file's
                yield from (entry.replace("///", "//!", 1) for entry in (["///@file", *block] if number < 10 else []))
                block = []
            continue
        own = re.search(r"(?<=[;,{}]) {2,}// ", line) or re.search(r"(?<=^  )\w+ {2,}// ", line)
        if not text:
            block = []
        elif ended and block and not own and indent(line) == indent(block[0]):
            yield from block
        fresh = False
        ended = not text or text.endswith((";", "{", "}")) or own or text.startswith(("#", "public:", "private:"))
        if own:
            code, _, comment = line.partition("  // ")
            line = f"{code}  ///< {escaped(comment)}"
        yield line


def escaped(comment):
    return comment.replace("<", "\\<").replace(">", "\\>")


def indent(line):
    return len(line) - len(line.lstrip())


if __name__ == "__main__":
    print("\n".join(as_doxygen(open(sys.argv[1]).read().splitlines())))
