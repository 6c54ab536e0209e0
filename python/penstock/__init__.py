"""Penstock from Python: modules of PyTorch exported, and trained with pipeline parallelism.

    step = penstock.trainer(module, example=batch, actors=2, schedule="zb-h1", microbatches=8,
                            optimizer=torch.optim.AdamW(module.parameters(), lr=3e-4))
    for batch in loader:
        loss = step(batch)
"""

from typing import Any

from .dims import dims
from .errors import PenstockError
from .export import export
from .exported import Exported, load_exported

__all__ = ["BatchPlanner", "Exported", "MicroBatches", "PenstockError", "Planned", "Prediction", "Profile", "Trainer", "Window", "check", "compare", "dims",
           "export", "load_exported", "perplexity", "plan", "planners", "profile", "resumable", "resume", "schedules", "trainer", "windows"]

# What needs the engine is imported when it is asked for, so that modules can be exported where it is not built.
_ENGINE = {"Trainer": "training", "trainer": "training", "Prediction": "prediction", "check": "checking", "compare": "checking",
           "schedules": "placing", "MicroBatches": "micro_batches", "plan": "planned", "Planned": "planned", "planners": "planned",
           "profile": "planned", "Profile": "profiling", "Window": "step_windows", "windows": "step_windows", "BatchPlanner": "batch_planner",
           "resume": "checkpoints", "resumable": "loaders", "perplexity": "likelihoods"}


def __getattr__(name: str) -> Any:
    if name not in _ENGINE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ENGINE[name]}", __name__), name)
