# SPDX-License-Identifier: Apache-2.0
"""The program, as the package brings it: `python -m penstock ARGS`, and the command `penstock` that pip installs."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Becomes the program, which has all further arguments. Where PyTorch is installed in another folder than the package, the program is told."""
    program = Path(__file__).with_name("penstock")
    if not program.exists():
        sys.exit(f"error: there is no program beside {__file__}\n  hint: pip install . in a clone of Penstock builds it")
    torch = find_spec("torch")
    if torch and torch.origin and Path(torch.origin).parents[1] != program.parents[1]:
        paths = [str(Path(torch.origin).parent / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    os.execv(program, ["penstock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
