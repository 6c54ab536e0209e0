#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows on one GPU what only a GPU can show, in six minutes (bench/gpu/README.md).
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PENSTOCK_PYTHON:-python3}" bench/gpu/run.py "$@"
