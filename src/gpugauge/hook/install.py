"""Installs the observer of this process, once: with torch, and with what the program imports beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpugauge.hook import adapters, loaders
from gpugauge.hook.client import Client
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.ends import Ends
from gpugauge.hook.hot import step_hook
from gpugauge.hook.modes import count_calls
from gpugauge.hook.observer import Observer
from gpugauge.hook.record import CHECKPOINTING
from gpugauge.hook.wrappers import after, be_unnoticed, evaluating, is_compiling, replace, within
from gpugauge.wire import messages as wire

observer: Observer | None = None


def install(announce: bool = False) -> None:
    """Install the hook in this process, once; `announce` opens the session now."""
    global observer  # noqa: PLW0603 - torch's hooks are global to the process, so is this
    if observer is None:
        be_unnoticed()
        observer = Observer(Client(wire.client_paths()))
        _listen(observer)
        loaders.install(observer)
        adapters.install(observer)
        count_calls(observer.state)
        Ends(observer).install()
        if os.environ.get(wire.COUNT_FLOPS_VARIABLE) == "1":
            _count_flops(observer)
        # A child inherits the hooks, so they are not registered again. The connection belongs to the parent.
        os.register_at_fork(after_in_child=observer.reset)
    if announce:
        observer.publish(CLOCKS[0]())


def _count_flops(observer: Observer) -> None:
    try:
        from gpugauge.hook.flopcount import StepCounter  # noqa: PLC0415 - loaded only for this

        observer.step_counter = StepCounter(observer)
    except Exception:
        observer.count_error()  # this version of torch has other modules


def _listen(observer: Observer) -> None:
    """Listen to the optimizers, models and checkpoints of torch."""
    register_optimizer_step_post_hook(step_hook(observer, is_compiling))
    state, library = observer.state, getattr(torch, "nn", None)
    module, parallel = getattr(library, "Module", None), getattr(library, "parallel", None)

    def created(optimizer: Any) -> None:
        state.register_optimizer(optimizer)
        observer.begin()

    def moved(model: Any) -> None:
        state.models.add(model)
        observer.begin()

    def distributed(model: Any) -> None:
        state.local_work.add_model(model)
        state.models.add(model.module)
        state.set_facts(parallel="ddp")

    def data_parallel(model: Any) -> None:
        count = len(getattr(model, "device_ids", None) or ())
        state.set_facts(parallel="dataparallel", dataparallel_devices=str(count))

    optional: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
        (getattr(torch.optim, "Optimizer", None), "__init__", lambda f: after(observer, f, created)),
        (module, "eval", lambda f: evaluating(observer, f)),
        (module, "to", lambda f: after(observer, f, moved)),
        (module, "cuda", lambda f: after(observer, f, moved)),
        (getattr(parallel, "DistributedDataParallel", None), "__init__", lambda f: after(observer, f, distributed)),
        (getattr(parallel, "DataParallel", None), "__init__", lambda f: after(observer, f, data_parallel)),
        (torch, "save", lambda f: within(observer, CHECKPOINTING, f)),
        (getattr(torch, "serialization", None), "save", lambda _: torch.save),
    )
    for owner, name, wrap in optional:
        replace(owner, name, wrap)
