# SPDX-License-Identifier: Apache-2.0
"""A test draws from here: a sample that is always the same in `make test`, all of it or new ones each time in `make soak`."""

import functools
import os
import random

SOAK = bool(os.environ.get("PENSTOCK_SOAK"))


@functools.cache
def drawn_seed(fixed=7):
    """PENSTOCK_SEED; without it a new one in `make soak`, and `fixed` in ordinary runs. It is printed, so that a run can be repeated."""
    new = random.randrange(1, 1 << 30) if SOAK else fixed
    seed = int(os.environ.get("PENSTOCK_SEED") or new)
    print(f"PENSTOCK_SEED={seed}", flush=True)
    return seed


def sampled(cases, count):
    """`count` of the cases in their own order, evenly spread, from where PENSTOCK_SEED draws; in `make soak` all of them."""
    cases = list(cases)
    if SOAK:
        return cases
    begin = random.Random(drawn_seed()).randrange(len(cases))
    return [cases[i] for i in sorted((begin + part * len(cases) // count) % len(cases) for part in range(count))]
