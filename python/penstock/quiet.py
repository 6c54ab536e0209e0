# SPDX-License-Identifier: Apache-2.0
"""PyTorch's internals, kept quiet while they trace: what they warn of is of their own code, and says nothing that a user could change.

PENSTOCK_DEBUG=1 in the environment lets all of it be seen. It is no attribute of the package: some is said while modules are imported, before a program
could set one, and ranks and workers that are started get it too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

INTERNAL = r"torch(vision)?\.|sympy\."  # modules that warnings are of; what a user's module calls wrongly is said of the user's line


def debugging() -> bool:
    return os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")


@contextlib.contextmanager
def internals_quiet() -> Iterator[None]:
    """Warnings of PyTorch's own modules, and all that its loggers say, are not shown. Errors are thrown as ever."""
    if debugging():
        yield
        return
    loggers = [logging.getLogger(name) for name in ["torch", *(name for name in list(logging.root.manager.loggerDict) if name.startswith("torch."))]]
    levels = [(each, each.level) for each in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=INTERNAL)
        warnings.filterwarnings("ignore", message="The tensor attribute|TF32 acceleration")
        try:
            for each in loggers:
                each.setLevel(logging.CRITICAL + 1)
            yield
        finally:
            for each, level in levels:
                each.setLevel(level)
