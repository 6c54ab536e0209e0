# SPDX-License-Identifier: Apache-2.0
"""The version of the package, the program and the library: the one place that says it."""

__version__ = "0.2"
