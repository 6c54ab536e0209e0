# SPDX-License-Identifier: Apache-2.0
"""Sizes as expressions of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.value_ranges import bound_sympy

from .errors import PenstockError


class UnknownSize(Exception):
    """A size that no expression of the symbols says."""


class Sizes:
    """The names s0, s1, ... of the symbols that PyTorch chose, in the order in which they were first named."""

    def __init__(self) -> None:
        self.names: dict[sympy.Symbol, sympy.Symbol] = {}

    def name(self, symbol: sympy.Symbol) -> str:
        """The symbol's name, made if it has none yet."""
        return str(self.names.setdefault(symbol, sympy.Symbol(f"s{len(self.names)}", integer=True, positive=True)))

    def text(self, size: int | torch.SymInt) -> str:
        """A number, or an expression in braces. Throws UnknownSize for what is neither."""
        if isinstance(size, int):
            return str(size)
        text = self.expression(size.node.expr)
        return text if text.lstrip("-").isdigit() else "{" + text + "}"

    def expression(self, expression: sympy.Expr) -> str:
        """The expression as Python writes it, in the names: + - * // % max min and parentheses. Throws UnknownSize."""
        unknown = expression.free_symbols - self.names.keys()
        if unknown:
            raise UnknownSize(f"{min(map(str, unknown))} is known only when the module runs")
        return _text(expression.xreplace(self.names), 0)


SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly an expression binds


def _text(expression: Any, outer: int) -> str:
    text, inner = _written(expression)
    return f"({text})" if inner < outer else text


def _written(e: Any) -> tuple[str, int]:
    if isinstance(e, (sympy.Integer, int)):
        return str(int(e)), ATOM if e >= 0 else SUM
    if isinstance(e, sympy.Symbol):
        return str(e), ATOM
    if isinstance(e, sympy.Add):
        return " + ".join(_text(term, SUM) for term in e.as_ordered_terms()).replace("+ -", "- "), SUM
    if isinstance(e, sympy.Mul):
        return _product(e)
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        return "*".join([_text(e.base, ATOM)] * int(e.exp)), PRODUCT
    if isinstance(e, (FloorDiv, CleanDiv)):
        return f"{_text(e.args[0], PRODUCT)}//{_text(e.args[1], ATOM)}", PRODUCT
    if isinstance(e, (Mod, PythonMod)):
        return f"{_text(e.args[0], PRODUCT)}%{_text(e.args[1], ATOM)}", PRODUCT
    if isinstance(e, (Max, Min, sympy.Max, sympy.Min)):
        name = "max" if isinstance(e, (Max, sympy.Max)) else "min"
        return f"{name}({', '.join(sorted(_text(argument, 0) for argument in e.args))})", ATOM
    raise UnknownSize(f"the size {e} cannot be written with + - * // % max min")


def _product(e: sympy.Mul) -> tuple[str, int]:
    # Divisions stand in parentheses, so that the order of the factors says nothing: 2*(s0//4).
    coefficient, rest = e.as_coeff_Mul()
    if not coefficient.is_Integer:
        raise UnknownSize(f"the size {e} is a fraction")
    factors = [] if coefficient in (1, -1) else [str(abs(int(coefficient)))]
    for factor in rest.as_ordered_factors():
        text, inner = _written(factor)
        factors.append(text if inner == ATOM or isinstance(factor, sympy.Pow) else f"({text})")
    return ("-" if coefficient < 0 else "") + "*".join(factors), SUM if coefficient < 0 else PRODUCT


UNBOUNDED = 2**53  # the largest whole number that every reader of JSON can hold
RELATIONS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">="}


def symbols_of(inputs: Sequence[tuple[str, torch.Tensor]], environment: ShapeEnv, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Names the symbols of the inputs' sizes. Each says which size it is, its traced value, and the least and largest that it may have."""
    symbols: dict[str, dict[str, Any]] = {}
    for name, tensor in inputs:
        for dim, size in enumerate(tensor.shape):
            expression = size.node.expr if isinstance(size, torch.SymInt) else None
            if not isinstance(expression, sympy.Symbol) or expression in sizes.names:
                continue
            bounds = environment.var_to_range[expression]
            symbols[sizes.name(expression)] = {"name": f"{name}.{dim}", "example": int(environment.backed_var_to_val[expression]),
                                               "min": _bound(bounds.lower), "max": _bound(bounds.upper)}
    return symbols


def _bound(bound: Any) -> int:
    return int(bound) if bound.is_Integer else UNBOUNDED


def conditions_of(environment: ShapeEnv, sizes: Sizes) -> list[list[str]]:
    """The conditions on sizes, beside their bounds, that tracing assumed: [left, relation, right]. Throws UnknownSize where one cannot be
    written."""
    conditions = []
    for guard in environment.guards:
        expression = environment.replace(guard.expr)
        for part in expression.args if isinstance(expression, sympy.And) else [expression]:
            if bound_sympy(part, environment.var_to_range).lower == sympy.true:
                continue
            if type(part) not in RELATIONS:
                raise UnknownSize(f"the condition {part} on sizes cannot be written")
            condition = [sizes.expression(part.lhs), RELATIONS[type(part)], sizes.expression(part.rhs)]
            if condition not in conditions:
                conditions.append(condition)
    return conditions


def written_conditions(environment: ShapeEnv, sizes: Sizes) -> list[list[str]]:
    """The same. Throws PenstockError where one cannot be written."""
    try:
        return conditions_of(environment, sizes)
    except UnknownSize as unknown:
        raise PenstockError(f"sizes of the module cannot vary: {unknown}") from None
