# SPDX-License-Identifier: Apache-2.0
"""Predicts the time and the memory of a step before it runs."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from .timeline import Timeline


@dataclass(frozen=True)
class Prediction:
    """A step's time in seconds, the share of the devices' time in which they do not compute, and the bytes of each device."""

    seconds: float
    bubble: float
    lower_bound: float
    memory: tuple[int, ...]
    timeline: Timeline

    @classmethod
    def of(cls, found: Any) -> Prediction:
        return cls(found.seconds, found.bubble, found.lower_bound, tuple(found.memory), Timeline(found.timeline))

    def __str__(self) -> str:
        memory = ", ".join(f"{size / 2**20:.1f} MiB" for size in self.memory)
        return (f"step {1e3 * self.seconds:.2f} ms, bubble {100 * self.bubble:.1f} %, at least {1e3 * self.lower_bound:.2f} ms in any order; "
                f"memory {memory}")

    def page(self, title: str = "predicted step") -> str:
        """The timeline as an HTML page that needs nothing else."""
        return self.timeline.page(title)

    def _repr_html_(self) -> str:
        return (f"<p>{html.escape(str(self))}</p><iframe style='width:100%;height:30em;border:0' "
                f"srcdoc=\"{html.escape(self.page())}\"></iframe>")
