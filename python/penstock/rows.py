# SPDX-License-Identifier: Apache-2.0
"""Rows of figures: a list of dicts that is text, HTML, CSV or a frame of pandas."""

from __future__ import annotations

import csv
import html
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import PenstockError, did_you_mean
from .files import checked_ending, written_whole


class Rows(list[dict[str, Any]]):
    """A dict for each row, with the same keys. As text and in notebooks it is a table."""

    @property
    def columns(self) -> list[str]:
        """The keys of texts and numbers, which tables show; not those of other objects, such as schedules."""
        objects = {key for row in self for key, value in row.items() if not (value is None or isinstance(value, (str, int, float)))}
        return [key for key in dict.fromkeys(key for row in self for key in row) if key not in objects]

    def frame(self) -> Any:
        """The columns as a pandas.DataFrame. Throws PenstockError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise PenstockError("a frame needs pandas, which is not installed", hint="pip install pandas, or take the rows, which are dicts") from None
        return pandas.DataFrame([{key: row.get(key) for key in self.columns} for row in self], columns=self.columns)

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        return Rows(found) if isinstance(which, slice) else found

    def best(self) -> dict[str, Any]:
        """The first row that was not refused. Throws PenstockError where there is none."""
        for row in self:
            if not row.get("refused"):
                return row
        raise PenstockError("none of the rows was possible", [f"{row.get('name', '')}: {row.get('refused')}" for row in self[:3]])

    def where(self, keep: Callable[[Mapping[str, Any]], bool]) -> Rows:
        """The rows for which `keep` is true. Throws PenstockError where it asks for a column that there is not."""
        return Rows(row for row in self if keep(_Read(row)))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the rows as CSV, with a line of the columns' names ahead. Throws PenstockError for another ending than `.csv`, and where it cannot be
        written."""
        checked_ending(path, "a list of rows", ("csv",))
        with written_whole(path) as beside, open(beside, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self)

    def plot(self, x: str, y: str = "bubble", *, by: str = "name", ax: Any = None, greyscale: bool = False) -> Any:
        """Draws column `y` over column `x` by matplotlib, a line for each value of `by`, on `ax` or on axes of a new figure, and gives the axes. Rows that
        were refused are left out. Throws PenstockError for a column that there is not, and where matplotlib is not installed."""
        from .drawing import plot_lines

        return plot_lines(self, x, y, by, ax, greyscale)

    def save_plot(self, path: str | os.PathLike, x: str, y: str = "bubble", *, by: str = "name", width: str | float = "column", height: float = 1.8,
                  greyscale: bool = False, dpi: int = 300) -> None:
        """Writes the plot as `.pdf`, `.png` or `.svg`, `width` as `Timeline.save` takes it and `height` in inches."""
        from .drawing import save_lines

        save_lines(self, path, (x, y, by), (width, height), greyscale, dpi)

    def __str__(self) -> str:
        table = [self.columns, *([_text(row.get(key)) for key in self.columns] for row in self)]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.columns))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
        body = "".join(line((_text(row.get(key)) for key in self.columns), "td") for row in self)
        return f"<table><thead>{line(self.columns, 'th')}</thead><tbody>{body}</tbody></table>"


class _Read(dict[str, Any]):
    """A row that names its columns where another one is asked for."""

    def __missing__(self, column: str) -> Any:
        raise PenstockError(f"the rows have no column {column!r}", hint=did_you_mean(column, self) or f"they have {', '.join(self)}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
