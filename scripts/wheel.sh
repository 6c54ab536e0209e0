#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/wheel.sh PYTHON: makes the wheel for this Python and its PyTorch, in dist/, and tries it as a new user would (tests/wheel/try_wheel.py).
# Libraries that few machines have are carried in the wheel; libtorch's are those of the PyTorch that is installed beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
raw=build-wheel-made  # and build-wheel is beside build, so that what both compile alike is compiled once
rm -rf "$raw"
"$1" -m pip wheel . --no-deps -q -w "$raw" --config-settings=build-dir=build-wheel
rm -f dist/penstock-*.whl
PATH="$PWD/.venv-wheel/bin:$PATH" .venv-wheel/bin/auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' --exclude 'libcud*' \
  --exclude 'libcupti*' --exclude 'libnvrtc*' -w dist "$raw"/penstock-*.whl
.venv-wheel/bin/auditwheel show dist/penstock-*.whl
python3 tests/wheel/try_wheel.py dist/penstock-*.whl "$1"
