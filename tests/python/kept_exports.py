# SPDX-License-Identifier: Apache-2.0
"""Exports of this process and of those that it starts are kept while it runs: tests that export one module again and again import this."""

import atexit
import os
import shutil
import tempfile

if os.environ.get("PENSTOCK_CACHE", "off") == "off":
    os.environ["PENSTOCK_CACHE"] = tempfile.mkdtemp(prefix="penstock-exports-")
    atexit.register(shutil.rmtree, os.environ["PENSTOCK_CACHE"], ignore_errors=True)
