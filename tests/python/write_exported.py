# SPDX-License-Identifier: Apache-2.0
"""Writes joint graphs of models with the tensors that they are called with, for tests of what the program makes of them.

usage: write_exported.py FOLDER NAME...   Models of zoo.py in f32, each as FOLDER/NAME.safetensors: header and graph as metadata, and all
inputs of the graph by name. Writes nothing where a model's package is not there.
"""

import json
import sys
from pathlib import Path

import torch
import zoo
from evaluate import data_of

import penstock
from penstock import saved


def main(folder, names):
    torch.set_num_threads(1)
    if not zoo.have("transformers"):
        return
    for name in names:
        module, kwargs = zoo.make(name)
        exported = penstock.export(module, (), kwargs)
        metadata = {"header": json.dumps(exported.header), "graph": exported.graph()}
        saved.write(folder / f"{name}.safetensors", metadata, {**exported.state, **data_of(module, (), kwargs)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
