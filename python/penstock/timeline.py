# SPDX-License-Identifier: Apache-2.0
"""Timelines: what devices did, or would do, and when; as figures, rows and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from . import _core
from .drawing import check_dpi, inches_of
from .engine import told
from .errors import PenstockError, check_is, check_whole
from .files import checked_ending, checked_path, read_named, write_text
from .rows import Rows
from .tables import Schedule

ENGINES = ("svg", "html", "json", "txt")  # the engine writes these; the rest is matplotlib's
PRINTED = ("pdf", "png")


class Timeline:
    """A step over time: `penstock.simulate` makes one, `Timeline.read` reads a measured or a saved one.

    Times are in the unit of the costs, or seconds where `seconds` is true. `schedule`: the table that was simulated; None of a timeline that was read.
    """

    def __init__(self, timeline: Any, figures: dict[str, Any] | None = None, explain: Callable[[], Any] | None = None, schedule: Schedule | None = None) -> None:
        self._timeline, self.schedule = timeline, schedule
        self._figures = figures
        self._explain = explain or (lambda: _core.explain_timeline(timeline))
        self._title, self._devices, self._seconds, self._makespan, self._chunks = _core.timeline_facts(timeline)

    @classmethod
    def read(cls, path: str | os.PathLike) -> Timeline:
        """Reads the file that `save("x.json")`, `penstock simulate --timeline` or a run wrote, or of a run's folder, which has its measured one. Throws
        PenstockError where that is none."""
        file = checked_path(path)
        file = file / "timeline.json" if file.is_dir() else file
        text = read_named(file, "penstock simulate NAME --timeline FILE.json writes one, and so does a run")
        return cls(told(lambda: _core.parse_timeline(text, str(file))))

    # --- figures

    @property
    def title(self) -> str:
        return self._title

    @property
    def devices(self) -> list[str]:
        """The names of its rows: "actor 0", or "device 0" of a program's."""
        return self._devices

    @property
    def seconds(self) -> bool:
        """Whether times are seconds; else they are in the costs' own unit."""
        return self._seconds

    @property
    def figures(self) -> dict[str, Any]:
        """All figures, of a simulated table by the names of `penstock simulate --json`."""
        if self._figures is None:
            self._figures = _core.timeline_figures(self._timeline)
        return self._figures

    @property
    def makespan(self) -> float:
        """From the begin to the end of all work."""
        return self.figures["makespan"]

    @property
    def bubble(self) -> float:
        """The share of the devices' time, 0 to 1, in which they do not compute."""
        return self.figures["bubble"]

    @property
    def lower_bound(self) -> float:
        """A time that no order of the same work could beat: the busiest device's work or, of a simulated table, the longest chain of needs."""
        return self.figures["lower_bound"]

    @property
    def busy(self) -> list[float]:
        """The time that each device computes."""
        return self.figures["busy"]

    @property
    def peak_live(self) -> list[float]:
        """The most activations that lived at once on each actor, in micro-batches of its whole share of the stages; of a program's device, bytes."""
        return self.figures["peak_live"]

    @property
    def actors(self) -> list[dict[str, float]]:
        """Each actor's "busy", "idle", "peak_live" and "peak_time"; of a simulated table also "versions" and "staleness"."""
        return self.figures["actors"]

    def rows(self) -> Rows:
        """A row for each activity: "device" (its number), "lane" ("compute", "transfer", "host"), "kind" ("F"; None outside of a table), "stage", "slice",
        "microbatch", "begin", "end", "duration", "peer" (who receives a transfer), "bytes", "task", "label"."""
        return Rows(_core.timeline_rows(self._timeline))

    def frame(self) -> Any:
        """The rows as a pandas.DataFrame. Throws PenstockError where pandas is not installed."""
        return self.rows().frame()

    @property
    def memory(self) -> Rows:
        """A row for each change of a device's memory: "device", "time", "total" and its parts, in bytes, or micro-batches' activations of a table under
        costs without seconds. None where it is not known."""
        return Rows(_core.timeline_memory(self._timeline))

    def explain(self) -> str:
        """Why it takes as long as it does, as text: where idle time goes, the longest path, and what would help most."""
        return self._explain().text(self._timeline)

    def explanation(self) -> dict[str, Any]:
        """The same as numbers: "critical_path", "idle" by device, and "changes", the best first, with what each would save."""
        return self._explain().figures()

    # --- pictures

    def svg(self) -> str:
        """The engine's picture, as wide as a page of a browser."""
        return _core.timeline_svg(self._timeline)

    def page(self, title: str = "") -> str:
        """An HTML page that needs nothing else, in which one can zoom and point."""
        check_is("title", title, str, "a text")
        return self._timeline.page(title or self.title)

    def json(self) -> str:
        """For `read`, Perfetto and chrome://tracing."""
        return _core.timeline_json(self._timeline)

    def text(self, columns: int = 100) -> str:
        """A line for each device, of so many characters."""
        check_whole("columns", columns, 1)
        return _core.timeline_text(self._timeline, columns)

    def plot(self, ax: Any = None, *, greyscale: bool = False, labels: bool = True, legend: bool = True) -> Any:
        """Draws it by matplotlib on `ax`, or on axes of a new figure, and gives the axes. `greyscale`: kinds differ by tone and hatching. `labels`: numbers
        of micro-batches, where boxes have room. Throws PenstockError where matplotlib is not installed."""
        from .drawing import plot

        return plot(self, ax, greyscale=greyscale, labels=labels, legend=legend)

    def save(self, path: str | os.PathLike, *, width: Literal["column", "page"] | float | None = None, greyscale: bool = False, labels: bool = True,
             legend: bool = True, dpi: int = 300) -> None:
        """Writes a picture by the ending of its name: `.svg`, `.html`, `.json` (for `read` and Perfetto) and `.txt` by the engine; `.pdf` and `.png`, in a
        paper's size, by matplotlib, as `.svg` is where `width` or `greyscale` is given.

        `width`: "column" (3.3 inches, the default), "page" (6.9), or inches. `dpi`: dots per inch of `.png`. `greyscale`, `labels`, `legend`: as `plot`.
        Throws PenstockError for another ending, a width that is none, and where matplotlib is needed and not installed.
        """
        ending = checked_ending(path, "a timeline", (*ENGINES, *PRINTED))
        check_dpi(dpi)
        if width is not None:
            inches_of(width)
        printed = width is not None or greyscale or not labels or not legend
        if ending in PRINTED or (ending == "svg" and printed):
            from .drawing import save

            save(self, path, width="column" if width is None else width, greyscale=greyscale, labels=labels, legend=legend, dpi=dpi)
            return
        if printed:
            raise PenstockError(f"{path}: width, greyscale, labels and legend are of pictures for paper", hint=".pdf, .png or .svg")
        write_text(path, {"svg": self.svg, "html": self.page, "json": self.json, "txt": self.text}[ending]())

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<penstock.Timeline {self.title}: {len(self.devices)} rows, makespan {self.makespan:.6g}{' s' if self.seconds else ''}, bubble {100 * self.bubble:.1f} %>"

    def __eq__(self, other: object) -> bool:
        return _core.timelines_alike(self._timeline, other._timeline) if isinstance(other, Timeline) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
