"""The gradients of `penstock check --dump` for VGG and ResNet are those of the same models written in PyTorch.

usage: images_test.py PENSTOCK   (the program)
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from torch.nn import functional

from gradients_test import read

PENSTOCK = ""
MICROBATCHES = 4


def vgg(p, x, model):
    number = 0
    for convolutions in {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3)}[int(model["depth"])]:
        for _ in range(convolutions):
            x = functional.relu(functional.conv2d(x, p[f"features.{number}.weight"], p[f"features.{number}.bias"], padding=1))
            number += 2
        x = functional.max_pool2d(x, 2)
        number += 1
    x = x.flatten(1)
    for i in (0, 3, 6):
        x = functional.linear(x if i == 0 else functional.relu(x), p[f"classifier.{i}.weight"], p[f"classifier.{i}.bias"])
    return x


def resnet(p, x, model):
    def normed(x, conv, bn, **options):
        x = functional.conv2d(x, p[f"{conv}.weight"], **options)
        return functional.batch_norm(x, None, None, p[f"{bn}.weight"], p[f"{bn}.bias"], training=True)

    x = functional.max_pool2d(functional.relu(normed(x, "conv1", "bn1", stride=2, padding=3)), 3, 2, 1)
    for group, blocks in enumerate(model["blocks"].split(",")):
        for i in range(int(blocks)):
            at, stride = f"layer{group + 1}.{i}", 2 if i == 0 and group > 0 else 1
            y = functional.relu(normed(x, f"{at}.conv1", f"{at}.bn1"))
            y = functional.relu(normed(y, f"{at}.conv2", f"{at}.bn2", stride=stride, padding=1))
            y = normed(y, f"{at}.conv3", f"{at}.bn3")
            x = functional.relu(y + (normed(x, f"{at}.downsample.0", f"{at}.downsample.1", stride=stride) if i == 0 else x))
    return functional.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


class Images(unittest.TestCase):
    # A batch norm sees one micro-batch at a time, so PyTorch does too.
    def compare(self, forward, name, *options):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            arguments = ["--set", f"model.name={name}", "--set", "width=4", "--batch", "16", "--microbatches", str(MICROBATCHES)]
            command = [PENSTOCK, "check", *arguments, "--dtype", "f64", "--dump", folder, *options]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            losses = json.loads((folder / "losses.json").read_text())
            parameters = {k: v.clone().requires_grad_() for k, v in read(folder / "parameters.safetensors").items()}
            batch = read(folder / "batch.safetensors")
            found = read(folder / "gradients_pipelined.safetensors")
        total = 0.0
        for image, label in zip(batch["image"].chunk(MICROBATCHES), batch["label"].chunk(MICROBATCHES)):
            loss = functional.cross_entropy(forward(parameters, image, losses["model"]), label, reduction="sum") / len(batch["label"])
            loss.backward()
            total += loss.item()
        self.assertLess(abs(total - losses["pipelined"]), 1e-9 * abs(total))
        self.assertEqual(found.keys(), parameters.keys())
        scale = 0.01 * max(p.grad.abs().max().item() for p in parameters.values())
        for key, parameter in parameters.items():
            difference = (found[key] - parameter.grad).abs().max().item()
            self.assertLess(difference / max(parameter.grad.abs().max().item(), scale), 1e-9, key)

    def test_vgg(self):
        self.compare(vgg, "vgg", "--set", "depth=16", "--schedule", "zb-h1")

    def test_resnet(self):
        self.compare(resnet, "resnet", "--set", "blocks=2,1,1,2", "--schedule", "interleaved-1f1b", "--chunks", "2")


if __name__ == "__main__":
    PENSTOCK = sys.argv.pop(1)
    unittest.main()
