"""What can be asked of a process that trains with torch without disturbing it. Loaded only once torch is."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gpugauge import wire

# The first that is set names the run; "none" is what torchrun sets when nobody gave it an id.
_RUN_IDS = ("GPUGAUGE_RUN_ID", "TORCHELASTIC_RUN_ID", "WANDB_RUN_ID", "MLFLOW_RUN_ID")


def hello(session: str) -> wire.Hello:
    """Return who this process is, from its environment and its build of torch."""
    found = {
        "command": Path(sys.argv[0]).name if sys.argv else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "run_id": next((run for run in map(os.environ.get, _RUN_IDS) if run and run != "none"), None),
        **_ranks(),
    }
    return wire.Hello(
        session=session,
        sequence=0,
        pid=os.getpid(),
        pid_namespace=_pid_namespace(),
        started=time.time(),
        facts={key: wire.clean(value) for key, value in found.items() if value},
    )


def _ranks() -> dict[str, str | None]:
    ranks = {name.lower(): os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks.update(rank=str(distributed.get_rank()), world_size=str(distributed.get_world_size()))
    return ranks


def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def parameters(optimizers: Iterable[Any]) -> tuple[wire.Parameters, ...]:
    """Return where the parameters of these optimizers live; about 1 ms for 1,000 of them."""
    totals: dict[tuple[str, str], list[int]] = {}
    seen = set()
    for optimizer in optimizers:
        for group in () if optimizer is None else optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                # A DTensor (FSDP2) counts with the shard that this process holds.
                tensor = getattr(parameter, "_local_tensor", parameter)
                key = (str(tensor.device), str(tensor.dtype).replace("torch.", ""))
                total = totals.setdefault(key, [0, 0, 0])
                elements = tensor.numel()
                total[0] += 1
                total[1] += elements
                total[2] += elements * tensor.element_size()
    ordered = sorted(totals.items(), key=lambda item: item[1][2], reverse=True)
    return tuple(wire.Parameters(*key, *total) for key, total in ordered[: wire.MAX_ENTRIES])


def devices() -> tuple[wire.Device, ...]:
    """Return the caching allocator's figures of each device that this process has used; empty before it uses CUDA.

    Reading them takes the allocator's lock only. While memory history is recorded that lock can wait for the GIL
    (pytorch issue 97833), so then nothing is read.
    """
    if not torch.cuda.is_initialized() or getattr(torch._C, "_cuda_isHistoryEnabled", bool)():  # noqa: SLF001
        return ()
    found = []
    for index in range(min(torch.cuda.device_count(), wire.MAX_DEVICES)):
        statistics = torch.cuda.memory_stats_as_nested_dict(index)
        reserved = statistics.get("reserved_bytes", {}).get("all", {})
        if not reserved.get("peak"):
            continue
        allocated = statistics["allocated_bytes"]["all"]
        found.append(
            wire.Device(
                index=index,
                uuid=_uuid(index),
                allocated=allocated["current"],
                allocated_peak=allocated["peak"],
                reserved=reserved["current"],
                active=statistics["active_bytes"]["all"]["current"],
                inactive_split=statistics["inactive_split_bytes"]["all"]["current"],
                retries=statistics["num_alloc_retries"],
                ooms=statistics["num_ooms"],
            )
        )
    return tuple(found)


_uuids: dict[int, str | None] = {}


def _uuid(index: int) -> str | None:
    """Return the device's uuid as the driver spells it, None where torch cannot tell (before 2.4)."""
    if index not in _uuids:
        raw = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        text = str(raw) if raw is not None else None
        _uuids[index] = text if text is None or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
    return _uuids[index]


def end_reason() -> str:
    """Return why the interpreter ends, at exit: one of wire.END_REASONS."""
    # The interpreter leaves an uncaught exception here; an interactive one leaves every error, which ended nothing.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)
    if error is None:
        return "finished"
    if issubclass(error, KeyboardInterrupt):
        return "interrupted"
    out_of_memory = error.__name__ == "OutOfMemoryError" or issubclass(error, MemoryError)
    return "out_of_memory" if out_of_memory else "error"
