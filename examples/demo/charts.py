# SPDX-License-Identifier: Apache-2.0
"""Charts as inline SVG, in the colours of the page that they stand in (--ink, --faint, --line, --ground)."""

import math
from html import escape

BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"  # of Okabe & Ito's palette
WIDTH, LEFT, RIGHT = 640, 220, 100  # in pixels at the natural size; LEFT: for names, RIGHT: for what stands behind a bar


def ticks(top, count=5):
    """Round steps from 0, about `count` up to `top`."""
    power = 10.0 ** math.floor(math.log10(top / count))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power * count >= top * (1 - 1e-9))
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def text(x, y, words, kind="", anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def svg(title, height, body):
    return (f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(title)}</title>\n{body}\n</svg>")  # fmt: skip


def bars(title, rows):
    """`rows`: (name, value, what is said of it, colour), drawn from 0; the longest is as long as there is room."""
    most = max(value for _, value, _, _ in rows) or 1
    height, out = 30, []
    for i, (name, value, said, colour) in enumerate(rows):
        y = height * i
        length = value / most * (WIDTH - LEFT - RIGHT)
        out.append(text(LEFT - 8, y + 19, name, anchor="end"))
        out.append(f'<rect class="bar" data-value="{value!r}" x="{LEFT}" y="{y + 5}" width="{length:.2f}" height="19" fill="{colour}"/>')
        out.append(text(LEFT + length + 6, y + 19, said, "said"))
    return svg(title, height * len(rows) + 4, "\n".join(out))


class Axes:
    """Over steps from 1: points and lines, scaled so that `top` is the highest value that is seen."""

    HEIGHT, TOP, BOTTOM, SIDE = 240, 24, 28, 58

    def __init__(self, title, steps, top, show):
        self.title, self.steps, self.top, self.body = title, steps, top, []
        for value in ticks(top):
            y = self.y(value)
            self.body.append(f'<line class="tick" x1="{self.SIDE}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.body.append(text(self.SIDE - 6, y + 4, show(value), "faint", "end"))
        for step in ticks(steps)[1:]:
            self.body.append(text(self.x(step), self.HEIGHT - 8, f"step {step:g}" if step < steps else f"{step:g}", "faint", "middle"))

    def x(self, step):
        return self.SIDE + (step - 1) / max(1, self.steps - 1) * (WIDTH - self.SIDE - 16)

    def y(self, value):
        """What is higher than seen is drawn at the top."""
        return self.HEIGHT - self.BOTTOM - min(1.02, value / self.top) * (self.HEIGHT - self.BOTTOM - self.TOP)

    def dots(self, values, colour):
        for step, value in enumerate(values, 1):
            self.body.append(f'<circle cx="{self.x(step):.1f}" cy="{self.y(value):.1f}" r="2" fill="{colour}"/>')

    def curve(self, values, colour, dashes="none"):
        points = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in enumerate(values, 1))
        self.body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')

    def level(self, value, colour, words, at=0.0, below=False):
        """A line across, with words on it that begin at this share of the width."""
        y = self.y(value)
        self.body.append(f'<line x1="{self.SIDE}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="2"/>')
        self.body.append(text(self.SIDE + 6 + at * (WIDTH - self.SIDE), y + (16 if below else -6), words, "over"))

    def mark(self, step, words):
        x = self.x(step)
        self.body.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{self.TOP - 6}" y2="{self.HEIGHT - self.BOTTOM}"/>')
        left = step > self.steps / 2
        self.body.append(text(x - 6 if left else x + 6, self.TOP + 6, words, "over", "end" if left else "start"))

    def svg(self):
        return svg(self.title, self.HEIGHT, "\n".join(self.body))


def legend(entries):
    """`entries`: (colour, words)."""
    out = (f'<span><i style="background:{colour}"></i>{escape(words)}</span>' for colour, words in entries)
    return f'<div class="legend">{"".join(out)}</div>'
