# SPDX-License-Identifier: Apache-2.0
"""Published figures of GPUs that were measured, held against what was measured (bench/gpu_layers.py)."""

import json
import pathlib
import statistics
import sys
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import gpu_layers  # noqa: E402


class MeasuredGpus(unittest.TestCase):
    def ratios(self, device, kind):
        """Predicted over measured, of the device's kernels of a class that take a launch's time many times over."""
        found = json.loads((BENCH / "measured" / f"{device}.json").read_text())
        kernels = {(kernel.kind, kernel.label, kernel.dtype): kernel for kernel in gpu_layers.kernels()}
        long = [(kernels[tuple(name)], micro) for *name, micro in found["kernels"] if name[0].startswith(kind) and micro > 50]
        predicted = gpu_layers.predicted_kernels([kernel for kernel, _ in long], device)
        return [1e6 * seconds / micro for seconds, (_, micro) in zip(predicted, long)]

    def test_the_shares_are_those_of_the_kernels(self):
        for device in ("h100-sxm", "h200"):
            for kind in ("product", "attention", "element by element", "norm", "cross-entropy", "embedding", "AdamW"):
                with self.subTest(device=device, kind=kind):
                    self.assertAlmostEqual(statistics.median(self.ratios(device, kind)), 1, delta=0.11)

    def test_layers_are_within_fifteen_percent(self):
        for device in ("h100-sxm", "h200"):
            found = json.loads((BENCH / "measured" / f"{device}.json").read_text())
            for size in (["gpt", "bf16", 4096, 2048, 2], ["gpt", "f32", 2048, 2048, 2]):
                [measured] = [row[5:7] for row in found["layers"] if row[:5] == size]
                for seconds, micro in zip(gpu_layers.predicted_layer(device, *size), measured):
                    with self.subTest(device=device, size=size):
                        self.assertAlmostEqual(1e6 * seconds / micro, 1, delta=0.15)


if __name__ == "__main__":
    unittest.main()
