"""Installs the observer of this process, once: with torch, and with what the program imports beside it: checkpoints,
compilation, engines, and the waits for other ranks.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpugauge.hook import loaders
from gpugauge.hook.batches import counted_iteration
from gpugauge.hook.client import Client
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.ends import Ends
from gpugauge.hook.finder import Finder
from gpugauge.hook.hot import step_hook
from gpugauge.hook.modes import count_calls
from gpugauge.hook.observer import Observer
from gpugauge.hook.record import CHECKPOINTING, COMPILING, GENERATING
from gpugauge.hook.recorder import DEEPSPEED
from gpugauge.hook.state import TrainingState
from gpugauge.hook.wrappers import after, be_unnoticed, evaluating, functions, is_compiling, replace, within
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
        _adapt(observer)
        count_calls(observer.state)
        Ends(observer).install()
        if os.environ.get(wire.COUNT_FLOPS_VARIABLE) == "1":
            try:
                from gpugauge.hook.flopcount import StepCounter  # noqa: PLC0415 - loaded only for this

                observer.step_counter = StepCounter(observer)
            except Exception:
                observer.count_error()  # this version of torch has other modules
        # A child inherits the hooks, so they are not registered again. The connection belongs to the parent.
        os.register_at_fork(after_in_child=observer.reset)
    if announce:
        observer.publish(CLOCKS[0]())


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


def _wrap_collectives(observer: Observer) -> None:
    """Register with torch, once in a process."""
    library = getattr(torch._C, "_distributed_c10d", None)  # noqa: SLF001 - its types are public under other names
    waits = (
        (getattr(library, "Work", None), "wait"),
        (getattr(library, "ProcessGroup", None), "monitored_barrier"),
        (torch.distributed, "_broadcast_coalesced"),  # buffers, before a forward pass of DDP
        (getattr(library, "Reducer", None), "_rebuild_buckets"),  # the first time, before the second one
    )
    for owner, name in waits:
        replace(owner, name, lambda f: _waiting(observer, f))
    # DDP reads its timings at the begin of each forward pass.
    ended = observer.state.local_work.end_iteration
    replace(getattr(library, "Logger", None), "set_runtime_stats_and_log", lambda f: after(observer, f, ended))


def _waiting(observer: Observer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of the function whose time on the training thread is a wait for other ranks."""
    local, record = observer.state.local_work, observer.record

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not local.blocking or get_ident() != record.thread:
            return function(self, *args, **kwargs)
        start = CLOCKS[0]()
        try:
            return function(self, *args, **kwargs)
        finally:
            local.waited += CLOCKS[0]() - start

    # pybind11 recognises by this name and by `self` that an override calls the method that it overrides.
    wrapper.__code__ = wrapper.__code__.replace(co_name=getattr(function, "__name__", "wrapper"))
    return functools.wraps(function)(wrapper)


def _adapt(observer: Observer) -> None:
    """Adapt the modules that are loaded, and each other module when the program imports it."""
    wraps, follows = functools.partial(_wraps, observer), functools.partial(_follows, observer)
    adapters: dict[str, Callable[[Any], None]] = {
        "torch._dynamo.callback": functools.partial(_dynamo, observer),
        "torch._dynamo": functools.partial(_dynamo_without_callbacks, observer),
        "torch._dynamo.decorators": _skip,
        "torch.distributed.checkpoint.state_dict_saver": wraps("save", "async_save", "save_state_dict"),
        "safetensors.torch": wraps("save_file"),
        "transformers.generation.utils": wraps("generate", owner="GenerationMixin", phase=GENERATING),
        "transformers.modeling_utils": functools.partial(_pretrained, observer),
        "deepspeed.runtime.engine": functools.partial(_deepspeed, observer),
        "torch.utils.tensorboard.writer": follows(
            "SummaryWriter", "__init__", lambda state, made: state.set_facts(tensorboard_dir=str(made.log_dir))
        ),
        "torch.amp.grad_scaler": follows("GradScaler", "__init__", _scaler_created),
        "torch.amp.autocast_mode": follows("autocast", "__enter__", _autocast_entered),
        "accelerate.data_loader": _accelerate,
        "torch.distributed._functional_collectives": functools.partial(_functional, observer),
    }
    _wrap_collectives(observer)

    def adapt(name: str) -> None:
        try:
            adapters.pop(name)(sys.modules[name])
        except Exception:
            observer.count_error()

    for name in tuple(adapters):
        if name in sys.modules:
            adapt(name)
    sys.meta_path.insert(0, Finder(adapters, adapt))


def _wraps(
    observer: Observer, *names: str, owner: str | None = None, phase: int = CHECKPOINTING
) -> Callable[[Any], None]:
    """Return an adapter by which these functions of a module, or of a class in it, are a phase."""

    def adapt(module: Any) -> None:
        for name in names:
            replace(getattr(module, owner, None) if owner else module, name, lambda f: within(observer, phase, f))

    return adapt


def _follows(
    observer: Observer, owner: str, name: str, callback: Callable[[TrainingState, Any], object]
) -> Callable[[Any], None]:
    """Return an adapter by which this method of a class calls `callback` afterwards."""
    called = functools.partial(callback, observer.state)
    return lambda module: replace(getattr(module, owner, None), name, lambda f: after(observer, f, called))


def _scaler_created(state: TrainingState, scaler: Any) -> None:
    if scaler.is_enabled():
        state.set_facts(grad_scaler="yes")


def _autocast_entered(state: TrainingState, context: Any) -> None:
    if getattr(context, "_enabled", False) and torch.is_grad_enabled():
        state.set_autocast(context.fast_dtype)


def _functional(observer: Observer, module: Any) -> None:
    """Measure the waits of the functional collectives, with nothing for dynamo to trace."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        measured = _waiting(observer, function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if is_compiling() else measured(*args, **kwargs)

        return wrapper

    replace(module, "wait_tensor", wrap)


def _dynamo(observer: Observer, module: Any) -> None:
    state = observer.state
    entered: list[int | None] = []

    def start(_: Any = None) -> None:
        state.compilations = (state.compilations or 0) + 1
        state.set_facts(compiled="yes")
        entered.append(observer.enter_phase(COMPILING))
        observer.begin()

    def end(_: Any = None) -> None:
        if entered and entered.pop() is not None:
            observer.leave_phase(COMPILING)

    module.callback_handler.register_start_callback(start)
    module.callback_handler.register_end_callback(end)


def _dynamo_without_callbacks(observer: Observer, _: Any) -> None:
    """Mark compilations as unknown if dynamo has loaded no callbacks (torch 2.1)."""
    if "torch._dynamo.callback" not in sys.modules:
        observer.state.compilations = None


def _skip(module: Any) -> None:
    """Have dynamo run the functions of the hook as they are. Where it traces one into a graph, that returns at once."""
    for name, loaded in tuple(sys.modules.items()):
        if name.startswith("gpugauge."):
            codes = [function.__code__ for value in vars(loaded).values() for function in functions(value, name)]
            while codes:
                code = codes.pop()
                module.skip_code(code)
                codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _pretrained(observer: Observer, module: Any) -> None:
    model = getattr(module, "PreTrainedModel", object)
    if "eval" in vars(model):  # since version 5 the class has its own method, which does not call that of torch
        replace(model, "eval", lambda f: evaluating(observer, f))

    def created(made: Any) -> None:
        observer.state.models.add(made)
        observer.begin()

    replace(model, "__init__", lambda f: after(observer, f, created))


def _accelerate(module: Any) -> None:
    """Count the batches that the loaders of accelerate return: they read one batch ahead."""
    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        replace(getattr(module, name, None), "__iter__", counted_iteration)


def _deepspeed(observer: Observer, module: Any) -> None:
    """Count the steps of the engine: DeepSpeed steps its inner optimizers several times in a step."""
    engine_class = getattr(module, "DeepSpeedEngine", None)
    counted: dict[int, int] = {}

    def created(engine: Any) -> None:
        observer.recorder.source = DEEPSPEED
        observer.state.set_facts(parallel="deepspeed")
        counted[id(engine)] = engine.global_steps

    def stepped(engine: Any) -> None:
        # step() runs for every micro-batch; only the last one updates the parameters and increments global_steps.
        if engine.global_steps != counted.get(id(engine)):
            counted[id(engine)] = engine.global_steps
            observer.engine_step()

    replace(engine_class, "__init__", lambda f: after(observer, f, created))
    replace(engine_class, "step", lambda f: after(observer, f, stepped))
    replace(engine_class, "save_checkpoint", lambda f: within(observer, CHECKPOINTING, f))
