"""Who a process that trains with torch is, asked without disturbing it. Loaded only once torch is."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gpugauge.wire import messages as wire

# The first that is set names the run; "none" is what torchrun sets when nobody gave it an id.
_RUN_IDS = ("GPUGAUGE_RUN_ID", "TORCHELASTIC_RUN_ID", "WANDB_RUN_ID", "MLFLOW_RUN_ID", "AZUREML_RUN_ID")

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


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


def later(known: Mapping[str, str | None]) -> dict[str, str]:
    """Return what may be known only after hello, with what the listeners have seen (`known`); about 100 µs."""
    found = dict(known)
    for source in (_build, _environment, _ranks, _precision, _runs, _initialised):
        found.update(_answer(source))
    return {key: wire.clean(value, wire.MAX_LONG_TEXT) for key, value in found.items() if value}


def _answer(source: Callable[[], dict[str, str | None]]) -> dict[str, str | None]:
    try:
        return source()
    except Exception:
        return {}  # a version of torch or of a tracker that we do not know: the rest is true nevertheless


def _build() -> dict[str, str | None]:
    if torch.version.cuda:
        return {"build": "cuda"}
    if getattr(torch.version, "hip", None):
        return {"build": "rocm"}
    mps = getattr(torch.backends, "mps", None)
    return {"build": "mps" if mps and mps.is_built() else "cpu"}


def _environment() -> dict[str, str | None]:
    """What this process may see, as its environment and its /dev and /proc tell: nothing here asks the driver."""
    nodes = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    # An empty CUDA_VISIBLE_DEVICES hides every device: that it is empty must be told.
    found: dict[str, str | None] = {name.lower(): os.environ.get(name) for name in _VISIBLE}
    found = {name: "(empty)" if value == "" else value for name, value in found.items()}
    return {**found, "device_nodes": str(len(nodes)), "kernel_driver": _kernel_driver()}


def _kernel_driver() -> str | None:
    try:
        found = re.search(r"\d+\.\d+[.\d]*", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found.group() if found else None


def _ranks() -> dict[str, str | None]:
    ranks = {name.lower(): os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks.update(
            rank=str(distributed.get_rank()),
            world_size=str(distributed.get_world_size()),
            backend=str(distributed.get_backend()),
        )
    return ranks


def _precision() -> dict[str, str | None]:
    """Whether float32 may be rounded to TF32: asked in the words of all versions, then in those of 2.9."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "tf32_matmul": _tf32(lambda: matmul.fp32_precision, lambda: matmul.allow_tf32),
        "tf32_cudnn": _tf32(lambda: cudnn.conv.fp32_precision, lambda: cudnn.allow_tf32),
    }


def _tf32(new: Callable[[], Any], old: Callable[[], Any]) -> str | None:
    for ask in (old, new):
        try:
            answer = ask()
        except (AttributeError, RuntimeError):
            continue  # RuntimeError: the program used the other words
        return "yes" if answer in (True, "tf32") else "no"
    return None


def _runs() -> dict[str, str | None]:
    """What the trackers of experiments call this run, as far as the program has loaded them."""
    wandb = getattr(sys.modules.get("wandb"), "run", None)
    mlflow = getattr(sys.modules.get("mlflow"), "active_run", None)
    active = mlflow() if mlflow else None
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    return {
        "wandb_run": getattr(wandb, "id", None) or os.environ.get("WANDB_RUN_ID"),
        "mlflow_run": active.info.run_id if active else os.environ.get("MLFLOW_RUN_ID"),
        "azureml_run": os.environ.get("AZUREML_RUN_ID"),
        "torchrun_run": torchrun if torchrun != "none" else None,
    }


def _initialised() -> dict[str, str | None]:
    """What only the CUDA (or HIP) runtime knows: asked once the program itself has initialised it."""
    if not torch.cuda.is_initialized():
        return {}
    driver = getattr(torch._C, "_cuda_getDriverVersion", None)  # noqa: SLF001 - torch.cuda has no name for it
    version = driver() if driver else None
    cudnn = torch.backends.cudnn.version()
    return {
        "visible_devices": str(torch.cuda.device_count()),
        "architectures": " ".join(torch.cuda.get_arch_list()),
        "driver_cuda": f"{version // 1000}.{version % 1000 // 10}" if version else None,
        "cudnn": str(cudnn) if cudnn else None,
    }


def loader(iterator: Any) -> dict[str, str | None]:
    """Return how the loader of an iterator loads."""
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    prefetch = getattr(iterator, "_prefetch_factor", None)
    return {
        "loader_workers": str(getattr(iterator, "_num_workers", "")),
        "loader_batch_size": str(size) if size is not None else None,
        "loader_pin_memory": "yes" if getattr(iterator, "_pin_memory", False) else "no",
        "loader_prefetch": str(prefetch) if prefetch is not None else None,
    }


def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


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
