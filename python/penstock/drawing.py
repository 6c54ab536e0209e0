# SPDX-License-Identifier: Apache-2.0
"""Timelines drawn by matplotlib in the size of a paper's column or page: vectors, fonts that print, and tones that a grey printer tells apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from .errors import PenstockError, did_you_mean
from .files import checked_ending, written_whole

if TYPE_CHECKING:
    from .rows import Rows
    from .timeline import Timeline

WIDTHS = {"column": 3.3, "page": 6.9}  # inches: a column and the text of a page of most conferences
# By look: the tone of grey, 0 is black, and matplotlib's hatching. Tones alone tell F, B and W apart.
GREYS = {"F": (0.93, ""), "B": (0.6, ""), "I": (0.78, ""), "W": (0.42, ""), "R": (0.97, "xxxx"), "update": (0.85, "----"), "transfer": (0.15, ""),
         "host": (0.6, "////"), "frozen": (0.97, "....")}
SMALL, LEAST = 7.0, 5.0  # points: of axes and legend; of the numbers in boxes at least
DIGIT, LETTER = 0.7, 0.54  # widths of a digit with some room, and of a letter on average, over the height of the font
ROW, STRIP = 0.17, 0.05  # inches: of a device's row, and of its transfers below
BELOW, ABOVE, RIGHT, LEGEND = 0.33, 0.04, 0.08, 0.14  # inches: margins beside the rows, and of a line of the legend
SWATCH = 2.3  # of a legend's entry beside its text, over the height of the font
COMPUTE, TRANSFER, HOST = 0, 1, 2  # lanes
# Lines have colours from Okabe and Ito's palette, which people with colour blindness can tell apart, and styles where there are none.
COLOURS, STYLES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"), ("-", "--", ":", "-.")
MARKERS = "os^Dv<>P"


class Box(NamedTuple):
    device: int
    lane: int
    look: int
    chunk: int
    begin: float
    end: float
    microbatch: int  # -1: none
    slice: int  # -1: sequences are whole

    def number(self, sliced: bool) -> str:
        """For the box; with its slice, "3.1"."""
        return f"{self.microbatch}.{self.slice}" if sliced and self.slice >= 0 else str(self.microbatch)


def plot(timeline: Timeline, ax: Any = None, *, greyscale: bool = False, labels: bool = True, legend: bool = True) -> Any:
    """As `Timeline.plot` says."""
    _matplotlib()
    boxes = _boxes(timeline)
    if ax is None:
        from matplotlib import pyplot

        figure = pyplot.figure()
        ax = _axes_in(figure, timeline, boxes, WIDTHS["page"], legend)
    _draw(timeline, boxes, ax, greyscale, labels, legend)
    return ax


def save(timeline: Timeline, path: str | os.PathLike, *, width: Any, greyscale: bool, labels: bool, legend: bool, dpi: int) -> None:
    """As `Timeline.save` says."""
    inches = inches_of(width)
    with _printed(path, dpi) as figure:
        boxes = _boxes(timeline)
        _draw(timeline, boxes, _axes_in(figure, timeline, boxes, inches, legend), greyscale, labels, legend)


def plot_lines(rows: Rows, x: str, y: str, by: str, ax: Any, greyscale: bool) -> Any:
    """As `Rows.plot` says."""
    _matplotlib()
    for column in (x, y, by):
        if column not in rows.columns:
            raise PenstockError(f"the rows have no column {column!r}", hint=did_you_mean(column, rows.columns) or f"they have {', '.join(rows.columns)}")
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(WIDTHS["column"], 1.8), layout="constrained").add_subplot()
    lines: dict[Any, list[tuple[Any, Any]]] = {}
    for row in rows:
        if row.get(y) is not None:
            lines.setdefault(row[by], []).append((row[x], row[y]))
    for number, (name, points) in enumerate(lines.items()):
        style = {"color": "black", "linestyle": STYLES[number % len(STYLES)]} if greyscale else {"color": COLOURS[number % len(COLOURS)]}
        ax.plot(*zip(*sorted(points)), label=str(name), marker=MARKERS[number % len(MARKERS)], markersize=3, linewidth=0.9, **style)
    for set_label, column in ((ax.set_xlabel, x), (ax.set_ylabel, y)):
        set_label(column.replace("_", " ").replace("microbatches", "micro-batches"), fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, length=2, width=0.5)
    ax.legend(fontsize=SMALL - 0.5, frameon=False, handlelength=2.2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def save_lines(rows: Rows, path: str | os.PathLike, columns: tuple[str, str, str], size: tuple[Any, float], greyscale: bool, dpi: int) -> None:
    """As `Rows.save_plot` says."""
    inches = inches_of(size[0]), inches_of(size[1], "height")
    with _printed(path, dpi) as figure:
        figure.set_size_inches(*inches)
        figure.set_layout_engine("constrained")
        plot_lines(rows, *columns, figure.add_subplot(), greyscale)


@contextmanager
def _printed(path: str | os.PathLike, dpi: int) -> Iterator[Any]:
    """A figure that is none of pyplot's, and is written when the block ends. Throws PenstockError for an ending that is not for paper."""
    ending = checked_ending(path, "a picture for paper", ("pdf", "png", "svg"))
    check_dpi(dpi)
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "hatch.linewidth": 0.4, "font.family": "sans-serif"}):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure
        with written_whole(path) as beside:
            figure.savefig(beside, format=ending, dpi=dpi, metadata={"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending))


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise PenstockError("a picture for paper needs matplotlib, which is not installed", hint="pip install matplotlib; .svg, .html and .json need nothing") from None
    return matplotlib


def check_dpi(dpi: Any) -> None:
    """Throws PenstockError for what is no number of dots."""
    if isinstance(dpi, bool) or not isinstance(dpi, Real) or not 1 <= dpi <= 10000:
        raise PenstockError(f"dpi={dpi!r}", hint="dots per inch of .png, 1 to 10000")


def inches_of(width: Any, name: str = "width") -> float:
    """Throws PenstockError for what is no width; `name`: of the argument."""
    if isinstance(width, str) and width in WIDTHS:
        return WIDTHS[width]
    if isinstance(width, str):
        raise PenstockError(f"{name}={width!r}", hint=did_you_mean(width, WIDTHS) or f'{name} is "column" (3.3 inches), "page" (6.9), or inches')
    if isinstance(width, bool) or not isinstance(width, Real) or not 1 <= width <= 100:
        raise PenstockError(f"{name}={width!r}", hint=f'{name} is "column" (3.3 inches), "page" (6.9), or 1 to 100 inches')
    return float(width)


def _axes_in(figure: Any, timeline: Timeline, boxes: list[Box], inches: float, legend: bool) -> Any:
    """Axes for the timeline, in a figure of this width that is made as high as its rows are."""
    looks = _core.timeline_looks()
    names = [looks[look][3] for look in {box.look for box in boxes}]
    left = 0.06 + (SMALL * 1.3 if _word(timeline) else 0) / 72 + SMALL * LETTER * max((len(name) for name in _row_names(timeline)), default=0) / 72
    rows = len(timeline.devices) * (ROW + (STRIP if any(box.lane == TRANSFER for box in boxes) else 0.02))
    above = ABOVE + (LEGEND * -(-len(names) // _legend_columns(names, inches - left - RIGHT)) if legend else 0)
    height = BELOW + rows + above
    figure.set_size_inches(inches, height)
    return figure.add_axes((left / inches, BELOW / height, 1 - (left + RIGHT) / inches, rows / height))


def _legend_columns(names: list[str], inches: float) -> int:
    """How many entries of a legend stand beside each other."""
    entry = (SMALL - 0.5) * (SWATCH + LETTER * max(map(len, names), default=1)) / 72
    return max(1, min(len(names), int(inches / entry)))


def _word(timeline: Timeline) -> str:
    """The name that all rows have ahead of their numbers, "actor"; "" where they have none in common."""
    words = {device.rpartition(" ")[0] for device in timeline.devices}
    numbered = all(device.rpartition(" ")[2].isdigit() for device in timeline.devices)
    return words.pop() if len(words) == 1 and numbered else ""


def _row_names(timeline: Timeline) -> list[str]:
    return [device.rpartition(" ")[2] for device in timeline.devices] if _word(timeline) else timeline.devices


def _boxes(timeline: Timeline) -> list[Box]:
    """All that takes time."""
    return [Box(*box) for box in _core.timeline_boxes(timeline._timeline) if box[5] > box[4]]


@contextmanager
def _unit(timeline: Timeline) -> Iterator[tuple[float, str]]:
    size, suffix = _core.time_unit(timeline.makespan, timeline.seconds)
    yield size, f"time ({suffix.strip()})" if suffix else "time"


def _draw(timeline: Timeline, boxes: list[Box], ax: Any, greyscale: bool, labels: bool, legend: bool) -> None:
    from matplotlib.collections import PolyCollection

    looks = _core.timeline_looks()
    shades = _core.chunk_shades(timeline._chunks)
    with _unit(timeline) as (size, name):
        groups: dict[tuple[int, int], list[Any]] = {}
        for box in boxes:
            bottom, height = {COMPUTE: (-0.4, 0.8), HOST: (-0.2, 0.4), TRANSFER: (0.44, 0.16)}[box.lane]
            low, high, left, right = box.device + bottom, box.device + bottom + height, box.begin / size, box.end / size
            groups.setdefault((box.look, box.chunk), []).append([(left, low), (right, low), (right, high), (left, high)])
        fills = {key: _fill(looks[key[0]], shades[key[1]], greyscale) for key in groups}
        # The lane of the host is drawn first, behind the boxes of computing.
        for key in sorted(groups, key=lambda key: (looks[key[0]][0] != "host", key)):
            fill, hatch = fills[key]
            ax.add_collection(PolyCollection(groups[key], facecolors=[fill], edgecolors="black", linewidths=0.25, hatch=hatch or None))
        _axes(timeline, ax, size, name)
        if labels:
            _labels(ax, boxes, fills, size)
    if legend:
        _legend(ax, looks, {look for look, _ in groups}, greyscale)


def _axes(timeline: Timeline, ax: Any, size: float, name: str) -> None:
    rows = len(timeline.devices)
    ax.set_xlim(0, max(timeline.makespan, 1e-30) / size * 1.002)
    ax.set_ylim(rows - 0.35, -0.45)
    step = max(1, rows // 32)
    ax.set_yticks(range(0, rows, step), _row_names(timeline)[::step])
    ax.set_ylabel(_word(timeline), fontsize=SMALL, labelpad=2)
    ax.set_xlabel(name, fontsize=SMALL, labelpad=1)
    ax.tick_params(labelsize=SMALL, length=2, width=0.5, pad=1.5)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_linewidth(0.5)


def _fill(look: tuple[str, str, str, str], shade: float, greyscale: bool) -> tuple[tuple[float, float, float], str]:
    """Colour and hatching; the later a stage of its device, the paler."""
    from matplotlib.colors import to_rgb

    name, _, colour, _ = look
    tone, hatch = GREYS[name]
    whole = (tone,) * 3 if greyscale else to_rgb(colour)
    white = shade * (0.5 if greyscale else 1.0)
    return tuple(part + (1 - part) * white for part in whole), hatch if greyscale else ""


def _labels(ax: Any, boxes: list[Box], fills: dict[tuple[int, int], tuple], size: float) -> None:
    """Numbers of micro-batches in the boxes that have room for the longest number of their kind, all of one size; with the slice where there is room."""
    left, right = ax.get_xlim()
    points = 72 * ax.get_figure().get_figwidth() * ax.get_position().width / (right - left)  # of a unit of time
    numbered = [box for box in boxes if box.lane == COMPUTE and box.microbatch >= 0]
    for sliced in (True, False):
        longest: dict[int, int] = {}
        for box in numbered:
            longest[box.look] = max(longest.get(box.look, 0), len(box.number(sliced)))
        heights = [(box.end - box.begin) / size * points / (DIGIT * longest[box.look]) for box in numbered]
        fitting = [height for height in heights if height >= LEAST]
        if fitting:
            break
    else:
        return
    height = min(SMALL - 0.5, *fitting)
    for box, room in zip(numbered, heights):
        if room >= height * 0.98:
            fill, hatch = fills[box.look, box.chunk]
            light = 0.299 * fill[0] + 0.587 * fill[1] + 0.114 * fill[2] > 0.5
            ground = {"boxstyle": "square,pad=0.05", "facecolor": fill, "edgecolor": "none"} if hatch else None
            ax.text((box.begin + box.end) / 2 / size, box.device + 0.02, box.number(sliced), ha="center", va="center_baseline", fontsize=height,
                    color="black" if light else "white", bbox=ground, clip_on=True)


def _legend(ax: Any, looks: list[tuple[str, str, str, str]], used: set[int], greyscale: bool) -> None:
    from matplotlib.patches import Patch

    patches = []
    for number, look in enumerate(looks):
        if number in used:
            fill, hatch = _fill(look, 0.0, greyscale)
            patches.append(Patch(facecolor=fill, edgecolor="black", linewidth=0.25, hatch=hatch or None, label=look[3]))
    if patches:
        columns = _legend_columns([patch.get_label() for patch in patches], ax.get_figure().get_figwidth() * ax.get_position().width)
        ax.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, fontsize=SMALL - 0.5, frameon=False, borderaxespad=0.1,
                  borderpad=0.1, handlelength=1.0, handleheight=0.8, handletextpad=0.4, columnspacing=0.9)
