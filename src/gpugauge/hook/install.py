"""Installs the observer of this process, once: with torch, and with what the program imports beside it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpugauge.hook import loaders
from gpugauge.hook.client import Client
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.ends import Ends
from gpugauge.hook.finder import Finder
from gpugauge.hook.hot import step_hook
from gpugauge.hook.modes import counters
from gpugauge.hook.observer import Observer
from gpugauge.hook.peers import waiting
from gpugauge.hook.record import CHECKPOINTING, COMPILING, GENERATING
from gpugauge.hook.recorder import DEEPSPEED
from gpugauge.hook.wrappers import Wrap, after, be_unnoticed, functions, is_compiling, replace, within
from gpugauge.wire import messages as wire

observer: Observer | None = None


def install(announce: bool = False) -> None:
    """Install the hook in this process, once; `announce` opens the session now."""
    global observer  # noqa: PLW0603 - torch's hooks are global to the process, so is this
    if observer is None:
        be_unnoticed()
        observer = Observer(Client(wire.client_paths()))
        register_optimizer_step_post_hook(step_hook(observer, is_compiling))
        _wrap(torch, {**_wrappers(observer), **counters(observer)})
        loaders.install(observer)
        _adapt(observer)
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


def _wrap(module: Any, wrappers: Mapping[str, Wrap]) -> None:
    for path, wrap in wrappers.items():
        replace(module, path, wrap)


def _wrappers(observer: Observer) -> dict[str, Wrap]:
    """Return the wrappers of torch's functions, by their paths from torch."""
    state, then, waits = observer.state, functools.partial(after, observer), waiting(observer)

    def created(optimizer: Any) -> None:
        state.register_optimizer(optimizer)
        observer.begin()

    def distributed(model: Any) -> None:
        state.local_work.add_model(model)
        state.models.add(model.module)
        state.set_facts(parallel="ddp")

    def data_parallel(model: Any) -> None:
        count = len(getattr(model, "device_ids", None) or ())
        state.set_facts(parallel="dataparallel", dataparallel_devices=str(count))

    return {
        "optim.Optimizer.__init__": then(created),
        "nn.Module.eval": then(observer.on_eval),
        "nn.Module.to": then(observer.on_model),
        "nn.Module.cuda": then(observer.on_model),
        "nn.parallel.DistributedDataParallel.__init__": then(distributed),
        "nn.parallel.DataParallel.__init__": then(data_parallel),
        "save": within(observer, CHECKPOINTING),
        "serialization.save": lambda _: torch.save,
        "_C._distributed_c10d.Work.wait": waits,
        "_C._distributed_c10d.ProcessGroup.monitored_barrier": waits,
        "distributed._broadcast_coalesced": waits,  # buffers, before a forward pass of DDP
        "_C._distributed_c10d.Reducer._rebuild_buckets": waits,  # the first time, before the second forward pass
        # DDP reads its timings at the begin of each forward pass.
        "_C._distributed_c10d.Logger.set_runtime_stats_and_log": then(state.local_work.end_iteration),
    }


def _adapt(observer: Observer) -> None:
    """Adapt the modules that are loaded, and each other module when the program imports it."""
    state, then, saves = observer.state, functools.partial(after, observer), within(observer, CHECKPOINTING)

    def logs(writer: Any) -> None:
        state.set_facts(tensorboard_dir=str(writer.log_dir))

    def scales(scaler: Any) -> None:
        if scaler.is_enabled():
            state.set_facts(grad_scaler="yes")

    adapters: dict[str, Callable[[Any], None] | dict[str, Wrap]] = {
        "torch._dynamo.callback": functools.partial(_dynamo, observer),
        "torch._dynamo": functools.partial(_dynamo_without_callbacks, observer),
        "torch._dynamo.decorators": _skip,
        "torch.distributed.checkpoint.state_dict_saver": dict.fromkeys(
            ("save", "async_save", "save_state_dict"), saves
        ),
        "torch.distributed._functional_collectives": {"wait_tensor": waiting(observer)},
        "torch.utils.tensorboard.writer": {"SummaryWriter.__init__": then(logs)},
        "torch.amp.grad_scaler": {"GradScaler.__init__": then(scales)},
        "safetensors.torch": {"save_file": saves},
        "transformers.generation.utils": {"GenerationMixin.generate": within(observer, GENERATING)},
        "transformers.modeling_utils": {
            "PreTrainedModel.__init__": then(observer.on_model),
            "PreTrainedModel.eval": then(observer.on_eval),  # since version 5, which does not call that of torch
        },
        # Of accelerate, the batches that its loaders return: they read one batch ahead.
        "accelerate.data_loader": {
            "DataLoaderShard.__iter__": loaders.iterating(observer.iterate),
            "DataLoaderDispatcher.__iter__": loaders.iterating(observer.iterate),
        },
        "deepspeed.runtime.engine": _deepspeed(observer),
    }

    def adapt(name: str) -> None:
        try:
            adapter, module = adapters.pop(name), sys.modules[name]
            _wrap(module, adapter) if isinstance(adapter, dict) else adapter(module)
        except Exception:
            observer.count_error()

    for name in tuple(adapters):
        if name in sys.modules:
            adapt(name)
    sys.meta_path.insert(0, Finder(adapters, adapt))


def _deepspeed(observer: Observer) -> dict[str, Wrap]:
    """Return the wrappers that count the steps of an engine, which steps its inner optimizers several times in each."""
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

    return {
        "DeepSpeedEngine.__init__": after(observer, created),
        "DeepSpeedEngine.step": after(observer, stepped),
        "DeepSpeedEngine.save_checkpoint": within(observer, CHECKPOINTING),
    }


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
    codes = [function.__code__ for function in functions()]
    while codes:
        code = codes.pop()
        module.skip_code(code)
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
