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

from .dims import dims
from .errors import PenstockError
from .export import export
from .exported import Exported, load_exported

__all__ = ["Action", "BatchPlanner", "Cluster", "Costs", "Exported", "FoundSchedule", "MicroBatches", "PenstockError", "Plan", "Planned", "Prediction",
           "Profile", "Rows", "Schedule", "Timeline", "Trainer", "Window", "check", "compare", "compare_schedules", "dims", "export", "load_exported", "plan",
           "planners", "profile", "schedule_infos", "schedules", "search", "simulate", "sweep", "trainer", "windows"]

# What needs the engine is imported when it is asked for, so that modules can be exported where it is not built.
_ENGINE = {"Trainer": "training", "trainer": "training", "Prediction": "prediction", "check": "checking", "compare": "checking",
           "schedules": "placing", "MicroBatches": "micro_batches", "plan": "planned", "Planned": "planned", "Plan": "planned", "planners": "planned",
           "profile": "planned", "Profile": "profiling", "Window": "step_windows", "windows": "step_windows", "BatchPlanner": "batch_planner",
           "Schedule": "tables", "Action": "tables", "schedule_infos": "tables", "Costs": "costs", "Cluster": "clusters", "Timeline": "timeline",
           "Rows": "rows", "simulate": "simulation", "compare_schedules": "simulation", "sweep": "simulation", "search": "searching",
           "FoundSchedule": "searching"}


def __getattr__(name: str) -> Any:
    if name not in _ENGINE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ENGINE[name]}", __name__), {"Plan": "Planned"}.get(name, name))  # a plan by its short name
