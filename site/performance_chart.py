# SPDX-License-Identifier: Apache-2.0
"""Draws the first table of docs/performance.md as a chart, in its colours light or dark: performance_chart.py > docs/performance.svg"""

import pathlib
import re
from html import escape

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs/performance.md"
WIDTH, LEFT, RIGHT, ROW, TOP = 860, 420, 24, 34, 16

STYLE = """
  text { font: 13px sans-serif; fill: #24292f }
  .faint { fill: #57606a; font-size: 12px }
  .bar { fill: #2f6fb2 }
  .line { stroke: #d0d7de }
  .one { stroke: #9a3412; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .faint { fill: #9da7b3 } .bar { fill: #6cb0f2 } .line { stroke: #3d444d } .one { stroke: #f0a070 }
  }
"""


def rows(markdown):
    """(what, beside, least, most) of each row that has a range."""
    found = re.findall(r"^\| (.*?) \| (.*?) \| ([\d.]+) to ([\d.]+) \|", markdown, re.MULTILINE)
    return [(what, beside, float(least), float(most)) for what, beside, least, most in found]


def chart(table):
    height = TOP + ROW * len(table) + 34

    def x(ratio):
        return LEFT + ratio * (WIDTH - LEFT - RIGHT)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
           "<title>Our step's time over that of others; less than 1 is faster</title>", f"<style>{STYLE}</style>"]
    bottom = TOP + ROW * len(table)
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        out.append(f'<line class="{"one" if tick == 1 else "line"}" x1="{x(tick):.0f}" x2="{x(tick):.0f}" y1="{TOP - 6}" y2="{bottom}"/>')
        out.append(f'<text class="faint" x="{x(tick):.0f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    for number, (what, beside, least, most) in enumerate(table):
        y = TOP + ROW * number
        out.append(f'<text x="{LEFT - 12}" y="{y + 12}" text-anchor="end">{escape(what)}</text>')
        out.append(f'<text class="faint" x="{LEFT - 12}" y="{y + 26}" text-anchor="end">beside {escape(beside)}</text>')
        out.append(f'<rect class="bar" x="{x(least):.1f}" y="{y + 7}" width="{max(x(most) - x(least), 3):.1f}" height="14" rx="2"/>')
        place, anchor = (x(most) + 6, "start") if most < 0.8 else (x(least) - 6, "end")  # not over the line at 1
        out.append(f'<text class="faint" x="{place:.1f}" y="{y + 18}" text-anchor="{anchor}">{least:.2f} to {most:.2f}</text>')
    return "\n".join([*out, "</svg>"])


if __name__ == "__main__":
    print(chart(rows(PAGE.read_text())))
