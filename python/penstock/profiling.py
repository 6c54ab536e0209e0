# SPDX-License-Identifier: Apache-2.0
"""Times that this machine takes for a module's step, measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import _core
from .engine import told
from .files import read_named, write_text


@dataclass(frozen=True)
class Profile:
    """Measured times of kernels and links: `text` is JSON, as `penstock profile` writes it."""

    text: str

    def save(self, path: str | os.PathLike) -> None:
        write_text(path, self.text)

    @classmethod
    def of(cls, profile: Profile | str | os.PathLike) -> Profile:
        """The profile, or that of a file."""
        return profile if isinstance(profile, cls) else cls(read_named(profile, "penstock profile CONFIG.toml --out FILE.json writes one"))

    def cluster(self, devices: int) -> Any:
        """So many threads of the machine that was measured. Throws PenstockError where its links were not."""
        return told(lambda: _core.measured_cluster(devices, self.text))
