# SPDX-License-Identifier: Apache-2.0
"""Penstock from Python: modules of PyTorch exported, and trained with pipeline parallelism.

    step = penstock.trainer(module, example=batch, actors=2, schedule="zb-h1", microbatches=8,
                            optimizer=torch.optim.AdamW(module.parameters(), lr=3e-4))
    for batch in loader:
        loss = step(batch)

Schedules are tables, which simulate, draw themselves and train:

    table = penstock.Schedule("zb-h1", actors=4, microbatches=8)
    penstock.simulate(table, forward=1, backward=2, latency=0.2).save("step.pdf")
"""

from typing import Any

from ._version import __version__ as __version__

# What a name is needs PyTorch, and mostly the engine, so it is imported when it is asked for: `python -m penstock` starts at once, and modules are
# exported where the engine is not built. No file is called like what it defines, as an imported file is an attribute of the package too.
_HOMES = {
    "batch_planner": "BatchPlanner", "checking": "check compare", "checkpoints": "resume", "clusters": "Cluster", "costs": "Costs", "errors": "PenstockError",
    "exported": "Exported load_exported", "exporting": "export", "likelihoods": "perplexity", "loaders": "resumable",
    "micro_batches": "MicroBatches", "named_dims": "dims", "placing": "schedules",
    "planned": "Planned plan planners profile", "prediction": "Prediction", "profiling": "Profile", "rows": "Rows", "searching": "FoundSchedule search",
    "simulation": "compare_schedules simulate sweep", "step_windows": "Window windows", "tables": "Action Schedule schedule_infos",
    "timeline": "Timeline", "training": "Trainer trainer",
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_ALSO = {"Plan": "Planned"}  # a plan by its short name
__all__ = sorted([*_HOME_OF, *_ALSO])


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "_core":  # `from . import _core` asks for it here first
        import_module("torch")  # the engine's libraries are found once PyTorch has loaded them
        return import_module("._core", __name__)
    name = _ALSO.get(name, name)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
