# SPDX-License-Identifier: Apache-2.0
"""PyTorch keeps parts of each trace until the process ends; here they are dropped."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Iterator

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import graph_module

GENERATED = "<eval_with_key>"  # begins the names under which torch.fx keeps the text of the code that it makes


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """A trace made inside leaves nothing behind in PyTorch: neither the results of ops on fake tensors, which hold all of a trace's symbols,
    nor the code of its graphs."""
    loader = getattr(graph_module, "_loader", None)
    kept = loader.eval_cache if loader is not None else {}
    before = {*kept, *linecache.cache}
    try:
        yield
    finally:
        FakeTensorMode.cache_clear()
        for table in (kept, linecache.cache):
            for name in [name for name in table if name not in before and name.startswith(GENERATED)]:
                del table[name]
