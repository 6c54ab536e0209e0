# SPDX-License-Identifier: Apache-2.0
"""The demonstration's page, made of its results alone:

    python3 examples/demo/demo_page.py runs/demo/results.json runs/demo/timelines.html runs/demo/lengths.html runs/demo/demo.html
"""

import json
import pathlib
import statistics
import sys
from html import escape

import charts

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1b1f24; --faint: #5b6472; --line: #d8dde4; --stripe: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171c; --ink: #e6e9ee; --faint: #98a2b0; --line: #303742; --stripe: #191d23; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 1.4em auto; max-width: 1320px; padding: 0 1.4em; }
h1 { font-size: 1.5em; margin: 0; }
h2 { font-size: 1.1em; margin: 0 0 .3em; }
.headline { font-size: 1.25em; margin: .5em 0 1em; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1.2em; align-items: start; }
figure { margin: 0; padding: .9em 1.1em; border: 1px solid var(--line); border-radius: 8px; min-width: 0; }
figcaption { color: var(--faint); font-size: .92em; margin-top: .4em; }
.chart { display: block; width: 100%; height: auto; }
.chart text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.chart .faint { fill: var(--faint); }
.chart .over { paint-order: stroke; stroke: var(--ground); stroke-width: 4px; }
.chart .tick { stroke: var(--line); }
.chart .mark { stroke: var(--ink); stroke-dasharray: 4 3; }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.2em; }
.legend span { display: inline-flex; align-items: center; gap: .4em; }
.legend i { width: 18px; height: 10px; border-radius: 2px; }
section { margin: 1.6em 0; }
li { overflow-wrap: anywhere; }
iframe { width: 100%; height: 760px; border: 1px solid var(--line); border-radius: 8px; }
details { margin: .4em 0; }
summary { cursor: pointer; }
pre { font: 13px/1.4 ui-monospace, monospace; overflow-x: auto; background: var(--stripe); padding: .8em 1em; border-radius: 6px; }
"""


def time_text(seconds):
    unit, suffix = (1, "s") if seconds >= 1 or seconds == 0 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "us")
    return f"{seconds / unit:.3g} {suffix}"


def bytes_text(amount):
    unit = 0
    while amount >= 1024 and unit < 4:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}"


def middle_half(values):
    low, _, high = statistics.quantiles(values, n=4)
    return f"half of {len(values)} steps took {time_text(low)} to {time_text(high)}"


def headline(time):
    predicted, median = time["predicted"], statistics.median(time["measured"])
    if time["incomparable"]:
        return f"A step was predicted to take {time_text(predicted)}. This run cannot confirm it: {time['incomparable']}; {middle_half(time['measured'])}."
    error = 100 * (predicted / median - 1)
    return f"A step was predicted to take {time_text(predicted)}, and took {time_text(median)}: the prediction is {abs(error):.1f} % too {'long' if error > 0 else 'short'}."


def figure(heading, body, caption):
    return f"<figure><h2>{escape(heading)}</h2>\n{body}\n<figcaption>{escape(caption)}</figcaption></figure>"


def time_figure(time):
    predicted, measured = time["predicted"], time["measured"]
    median = statistics.median(measured)
    # Of a disturbed run a few steps take many times as long as the others.
    top = 1.25 * max(predicted, statistics.quantiles(measured, n=10)[8])
    axes = charts.Axes("Step times, predicted and measured", len(measured), top, time_text)
    axes.dots(measured, charts.ORANGE)
    axes.level(predicted, charts.BLUE, f"predicted {time_text(predicted)}", below=predicted < median)
    axes.level(median, charts.GREEN, f"median {time_text(median)}", at=0.5, below=predicted >= median)
    caption = f"{middle_half(measured)}; at the top edge: longer than {time_text(top)}.".capitalize()
    if time["incomparable"]:
        caption += f" Not judged: {time['incomparable']}."
    return figure("Time of every step, and the prediction", axes.svg(), caption)


def memory_figure(memory):
    rows = []
    for actor, (predicted, measured) in enumerate(zip(memory["predicted"], memory["measured"])):
        rows.append((f"actor {actor}, predicted", predicted, bytes_text(predicted), charts.BLUE))
        rows.append(("measured", measured, bytes_text(measured), charts.ORANGE))
    worst = max(abs(p / m - 1) for p, m in zip(memory["predicted"], memory["measured"]))
    return figure("Peak memory of each actor", charts.bars("Peak memory, predicted and measured", rows),
                  f"Predicted and measured differ by at most {100 * worst:.2g} %.")  # fmt: skip


def peer_figure(peer):
    rows = [(f"{who} {schedule}", seconds, time_text(seconds), charts.BLUE if who == "penstock" else charts.PINK)
            for who, schedule, seconds in peer["medians"]]  # fmt: skip
    return figure("A step beside torch.distributed.pipelining", charts.bars("Step times of Penstock and of the peer", rows),
                  f"Median seconds; Penstock's best schedule takes {peer['ratio']:.2f} of the time of the peer's best.")  # fmt: skip


def loss_figure(losses):
    unbroken, resumed = losses["unbroken"], losses["resumed"]
    axes = charts.Axes("Loss of the unbroken run and of the resumed one", len(unbroken), 1.1 * max(unbroken), lambda value: f"{value:g}")
    axes.curve(unbroken, charts.BLUE)
    axes.curve(resumed, charts.ORANGE, "5 5")
    axes.mark(losses["resumed_from"], f"resumed on 3 actors, from step {losses['resumed_from']}")
    names = charts.legend([(charts.BLUE, "unbroken, 2 actors"), (charts.ORANGE, f"killed after step {losses['killed_after']}, then resumed")])
    worst = max(abs(a - b) / a for a, b in zip(unbroken, resumed))
    return figure("Loss, killed and resumed", names + axes.svg(), f"The curves lie on each other: the losses differ by at most {worst:.1e} of themselves.")


def lengths_figure(lengths):
    colours = (charts.PINK, charts.ORANGE, charts.BLUE)
    rows = [(way, rate, f"{rate:,.0f}", colour) for (way, (_, rate)), colour in zip(lengths.items(), colours)]
    return figure("One batch of documents, three ways", charts.bars("Tokens per second, padded, packed and planned", rows),
                  "Tokens per second, padding not counted, of the same batch: padded to the longest that is allowed, packed into equal rows, planned for itself.")  # fmt: skip


def frame(heading, title, page):
    """A page of its own, shown in this one."""
    return f'<section><h2>{heading}</h2>\n<iframe title="{title}" srcdoc="{escape(page)}"></iframe></section>\n' if page else ""


def make_page(results, timelines="", lengths=""):
    """`results`: what results.json holds; a part that has not run is not there. `timelines` and `lengths`: pages of their own, shown in frames."""
    figures = [make(results[name]) for name, make in
               (("time", time_figure), ("memory", memory_figure), ("peer", peer_figure), ("losses", loss_figure),
                ("lengths", lengths_figure)) if name in results]  # fmt: skip
    found = "".join(f"<li>{escape(text)}</li>\n" for text in results["findings"])
    parts = "".join(f"<details><summary>{i}. {escape(heading)}</summary>\n<pre>{escape(text)}</pre></details>\n"
                    for i, (heading, text) in enumerate(results["parts"], 1))  # fmt: skip
    frames = frame("One step, device by device", "timelines", timelines) + frame("One batch padded, packed and planned", "lengths", lengths)
    said = f'<p class="headline">{escape(headline(results["time"]))}</p>\n' if "time" in results else ""
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>Penstock, shown by running it</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Penstock, shown by running it</h1>\n{said}"
            f'<div class="figures">\n{"".join(figures)}\n</div>\n<section><h2>What was found</h2>\n<ul>\n{found}</ul></section>\n{frames}'
            f"<section><h2>What ran, and what it said</h2>\n{parts}</section>\n"
            "<script>document.documentElement.dataset.ready = 'yes';</script>\n</body>\n</html>\n")  # fmt: skip


if __name__ == "__main__":
    results, timelines, lengths, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(make_page(json.loads(results.read_text()), timelines.read_text(), lengths.read_text()))
