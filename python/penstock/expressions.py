# SPDX-License-Identifier: Apache-2.0
"""Expressions of sizes, read and computed as data: a file that was exported elsewhere says them, so none of it is run as code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from .errors import PenstockError

# No other text between braces in a graph consists of these characters alone: attributes have "=".
EXPRESSION = re.compile(r"\{([\w +\-*/%(),]+)\}", re.ASCII)
GROWING = re.compile(r"\{([\d.e+-]+)\|[\d.e+\-naif]+\}", re.ASCII)  # a number, and that for twice as many samples
TOKEN = re.compile(r" *(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),]))", re.ASCII)
LARGEST = 2**63 - 1  # the program computes with 64 bits
DEEPEST = 100  # expressions within one another; the program's limit too
RELATIONS = {"==": int.__eq__, "!=": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}


def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """The value of an expression of + - * // % max min and parentheses, `sizes` by symbol ("s0"). Throws PenstockError for any other text."""
    return _Reader(text, sizes).whole()


def holds(condition: tuple[str, str, str], sizes: Mapping[str, int]) -> bool:
    """Whether a condition, (left, relation, right), is true of these sizes. Throws PenstockError where it is none."""
    left, relation, right = condition
    if relation not in RELATIONS:
        raise PenstockError(f'the condition "{left} {relation} {right}" on sizes cannot be read: there is no relation "{relation}"',
                            hint="export the module again")
    return RELATIONS[relation](size_of(left, sizes), size_of(right, sizes))


def with_sizes(text: str, sizes: Mapping[str, int]) -> str:
    """The text with numbers in place of the expressions in braces, and of two numbers, {6.0|12.0}, the first. Throws PenstockError for an
    expression that cannot be read."""
    return EXPRESSION.sub(lambda found: str(size_of(found[1], sizes)), GROWING.sub(r"\1", text))


class _Reader:
    """Reads by recursive descent: sums of products of atoms."""

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        self.text, self.sizes, self.depth, self.at = text, sizes, 0, 0
        self.next()

    def next(self) -> None:
        """Steps to the next token; "" at the end."""
        found = TOKEN.match(self.text, self.at)
        if not found and self.text[self.at:].strip(" "):
            self.fail(f"{self.text[self.at:].strip(' ')[0]!r} has no place in it")
        self.token, self.at = (found[0].lstrip(" "), found.end()) if found else ("", len(self.text))

    def take(self, token: str) -> bool:
        taken = self.token == token
        if taken:
            self.next()
        return taken

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f'"{token}" is missing')

    def fail(self, why: str) -> NoReturn:
        shown = self.text if len(self.text) <= 200 else self.text[:200] + "..."
        raise PenstockError(f'the size "{shown}" cannot be read: {why}', hint="export the module again")

    def whole(self) -> int:
        value = self.sum()
        if self.token:
            self.fail(f'"{self.token}" follows on its end')
        return value

    def sum(self) -> int:
        value = self.product()
        while self.token in ("+", "-"):
            sign = 1 if self.token == "+" else -1
            self.next()
            value = self.in_range(value + sign * self.product())
        return value

    def product(self) -> int:
        value = self.atom()
        while self.token in ("*", "//", "%"):
            operation = self.token
            self.next()
            right = self.atom()
            if operation != "*" and right <= 0:
                self.fail(f"it divides by {right}")
            value = self.in_range(value * right if operation == "*" else value // right if operation == "//" else value % right)
        return value

    def atom(self) -> int:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"more than {DEEPEST} expressions lie within one another")
        value = self.one()
        self.depth -= 1
        return value

    def one(self) -> int:
        token = self.token
        self.next()
        if token == "(":
            value = self.sum()
            self.expect(")")
            return value
        if token == "-":
            return -self.atom()
        if token.isdigit():
            return self.in_range(int(token) if len(token) < 20 else LARGEST + 1)
        if token in ("max", "min"):
            return (max if token == "max" else min)(self.several())
        if token not in self.sizes:
            self.fail(f'no size is given for "{token}"' if token else "it ends too early")
        return self.sizes[token]

    def several(self) -> list[int]:
        self.expect("(")
        values = [self.sum()]
        while self.take(","):
            values.append(self.sum())
        self.expect(")")
        return values

    def in_range(self, value: int) -> int:
        if abs(value) > LARGEST:
            self.fail("its value is no 64-bit number")
        return value
