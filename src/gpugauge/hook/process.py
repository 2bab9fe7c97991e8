"""Facts about a process that trains with torch, read without side effects on it. Loaded only after torch."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.work import batch_size
from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire

_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def first_environment() -> Mapping[str, str]:
    """Return the environment of the process at its start."""
    entries = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


# CUDA reads the variable once, when it is initialised. So a value counts only if it has not changed since before that.
_variables: Mapping[str, str] = attempt({}, first_environment) if torch.cuda.is_initialized() else os.environ
_before_cuda = _variables.get(_LAUNCH_BLOCKING)


def _launch_blocking() -> dict[str, str | None]:
    """Return whether each launch of a kernel waits for its end. Empty before CUDA is used, and if it is not certain."""
    value = os.environ.get(_LAUNCH_BLOCKING)
    if not torch.cuda.is_initialized() or value != _before_cuda:
        return {}
    return {"launch_blocking": "no" if value in (None, "", "0") else "yes"}


def _settings() -> dict[str, str | None]:
    """Return the settings of algorithms and of the allocator. They are not mistakes: a program can need them."""
    cudnn = torch.backends.cudnn
    flags = {"cudnn_benchmark": cudnn.benchmark, "cudnn_deterministic": cudnn.deterministic}
    flags["deterministic"] = torch.are_deterministic_algorithms_enabled()
    found = {name: "yes" if on else "no" for name, on in flags.items()}
    configured = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    backend = torch.cuda.get_allocator_backend() if torch.cuda.is_initialized() else None
    return {**found, "alloc_conf": configured, "allocator": backend}


def _threads() -> dict[str, str | None]:
    """Return the threads of one operator on the CPU, and the CPUs for them. Ranks of one host share its CPUs, unless
    they are bound to some: then it is not known how many ranks share them, and each counts by itself.
    """
    cpus = len(os.sched_getaffinity(0))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1") if cpus == os.cpu_count() else "1"
    return {"torch_threads": str(torch.get_num_threads()), "cpus": str(cpus), "ranks_on_cpus": ranks}


# The first variable that is set names the run; torchrun sets "none" when it has no id.
_RUN_IDS = ("GPUGAUGE_RUN_ID", "TORCHELASTIC_RUN_ID", "WANDB_RUN_ID", "MLFLOW_RUN_ID", "AZUREML_RUN_ID")

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OVERRIDES = ("HSA_OVERRIDE_GFX_VERSION",)


def hello(session: str) -> wire.Hello:
    """Return the hello message, from the environment and the build of torch."""
    found = {
        "command": Path(sys.argv[0]).name if sys.argv else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "run_id": next((run for run in map(os.environ.get, _RUN_IDS) if run and run != "none"), None),
        **_ranks(),
        **{name: os.environ.get(name) for name in wire.JOB_VARIABLES},
        wire.INIT_START: attempt(None, _init_start),
    }
    return wire.Hello(
        session=session,
        sequence=0,
        pid=os.getpid(),
        pid_namespace=attempt(None, lambda: Path("/proc/self/ns/pid").stat().st_ino),
        started=CLOCKS[1](),
        facts={key: wire.clean(value) for key, value in found.items() if value},
    )


def later_facts(known: Mapping[str, str | None], stepped: bool = False) -> dict[str, str]:
    """Return the facts that may appear only after hello, and `known` of the listeners. Takes about 100 µs."""
    found = dict(known)
    sources = (_build, _environment, _ranks, precision, _runs, _initialised, _launch_blocking, _settings)
    # Before the first step torch may not have set its number of threads, and the question would set it.
    for source in (*sources, *((_threads,) if stepped else ())):
        found.update(attempt({}, source))
    return {key: wire.clean(value, wire.MAX_LONG_TEXT_CHARACTERS) for key, value in found.items() if value}


def _build() -> dict[str, str | None]:
    hip, mps = getattr(torch.version, "hip", None), getattr(torch.backends, "mps", None)
    built = {"cuda": torch.version.cuda, "rocm": hip, "mps": mps and mps.is_built()}
    return {"build": next((name for name, there in built.items() if there), "cpu")}


def _environment() -> dict[str, str | None]:
    """Return the devices visible to this process by its environment, /dev and /proc. Never calls the driver."""
    # An empty CUDA_VISIBLE_DEVICES hides every device, so an empty value is reported, too.
    found: dict[str, str | None] = {name.lower(): os.environ.get(name) for name in (*_VISIBLE, *_OVERRIDES)}
    found = {name: "(empty)" if value == "" else value for name, value in found.items()}
    if getattr(torch.version, "hip", None):
        nodes, driver = _amd_nodes(), "amdgpu" if Path("/sys/module/amdgpu").is_dir() else None
    else:
        nodes = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
        version = re.search(r"\d+\.\d+[.\d]*", attempt("", Path("/proc/driver/nvidia/version").read_text))
        driver = version.group() if version else None
    return {**found, "device_nodes": str(len(nodes)), "kernel_driver": driver}


def _amd_nodes() -> list[str]:
    """Return the device files of AMD's GPUs that this process may open. Its groups decide: video, render."""
    wanted = os.R_OK | os.W_OK
    names = os.listdir("/dev/dri") if os.access("/dev/kfd", wanted) and os.path.isdir("/dev/dri") else []
    return [name for name in names if name.startswith("renderD") and os.access(f"/dev/dri/{name}", wanted)]


def _ranks() -> dict[str, str | None]:
    ranks = {name.lower(): os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, size, backend = distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
        ranks.update(rank=str(rank), world_size=str(size), backend=str(backend))
    return ranks


def precision() -> dict[str, str | None]:
    """Return yes or no: whether matrix products, and convolutions, in float32 may be rounded to TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # By the name of all versions, else by that of 2.9: the one that the program uses is valid.
    reads: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "tf32_matmul": (lambda: matmul.allow_tf32, lambda: matmul.fp32_precision),
        "tf32_cudnn": (lambda: cudnn.allow_tf32, lambda: cudnn.conv.fp32_precision),
    }
    found = {
        name: [value for read in each if (value := attempt(None, read)) is not None] for name, each in reads.items()
    }
    return {name: ("yes" if values[0] in (True, "tf32") else "no") for name, values in found.items() if values}


def _runs() -> dict[str, str | None]:
    """Return the ids of this run in the experiment trackers that the program has loaded."""
    wandb = getattr(sys.modules.get("wandb"), "run", None)
    mlflow = getattr(sys.modules.get("mlflow"), "active_run", None)
    active = mlflow() if mlflow else None
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    return {
        "wandb_run": getattr(wandb, "id", None) or os.environ.get("WANDB_RUN_ID"),
        "mlflow_run": active.info.run_id if active else os.environ.get("MLFLOW_RUN_ID"),
        "azureml_run": os.environ.get("AZUREML_RUN_ID"),
        "torchrun_run": torchrun if torchrun != "none" else None,
        "gpugauge_run": os.environ.get(wire.RUN_VARIABLE),
    }


def _initialised() -> dict[str, str | None]:
    """Return the facts of the CUDA (or HIP) runtime. Read only once the program itself has initialised it."""
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
    """Return the settings of the loader of an iterator."""
    size, _ = batch_size(iterator)
    prefetch = getattr(iterator, "_prefetch_factor", None)
    return {
        "loader_workers": str(getattr(iterator, "_num_workers", "")),
        "loader_batch_size": str(size) if size is not None else None,
        "loader_pin_memory": "yes" if getattr(iterator, "_pin_memory", False) else "no",
        "loader_prefetch": str(prefetch) if prefetch is not None else None,
    }


def _init_start() -> str:
    """Return when the first process of the pid namespace started, in clock ticks after boot, see proc_pid_stat(5)."""
    return Path("/proc/1/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
