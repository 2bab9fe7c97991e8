"""Whether and how processes use GPUs, and the sums over the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpugauge.status.words import runs

Entry = dict[str, Any]
_Process = TypeVar("_Process", bound=Mapping[str, Any])
_SUMS = ("memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts")


def on_gpus(gpus: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the processes on GPUs, once for each GPU, without those that have ended."""
    return (process for gpu in gpus for process in gpu["processes"] if not process["ended"])


def in_use(gpu: Entry) -> bool:
    """Return whether a program other than that of a display uses a GPU."""
    return bool(gpu["processes_hidden"]) or any(process["role"] != "display" for process in on_gpus([gpu]))


def used_well(gpu: Entry) -> bool:
    """Return whether a process works on a GPU that loses less than half of its time: then the GPU is not wasted,
    whatever the others do.
    """
    return any(process["level"] in {"good", "poor"} for process in gpu["processes"])


def unhooked(processes: Iterable[Entry]) -> set[str]:
    """Return the processes whose state is unknown, because they run without the hook."""
    return {process["process"] for process in processes if process["state_words"] == "no hook"}


def judging(processes: Iterable[Entry]) -> set[str]:
    """Return the processes with the hook on which there is no verdict yet."""
    return {p["process"] for p in processes if p["judging_since"] is not None and not p["silent"]}


def silent(processes: Iterable[Entry]) -> set[str]:
    """Return the processes with the hook from which no report arrives."""
    return {process["process"] for process in processes if process["silent"]}


def gpus_words(gpus: Sequence[Entry]) -> str:
    """Return "GPU 3", or "GPUs 0-2, 5"; GPUs without an index by uuid."""
    words = runs(gpu["index"] for gpu in gpus if gpu["index"] is not None)
    words += [gpu["uuid"] for gpu in gpus if gpu["index"] is None]
    return ("GPU " if len(gpus) == 1 else "GPUs ") + ", ".join(words)


def by_place(
    gpu: Mapping[str, Any], processes: Sequence[_Process]
) -> Iterator[tuple[Mapping[str, Any] | None, list[_Process]]]:
    """Yield the processes of a GPU by place: those on no MIG device, or on one that is not known, with None, then each
    MIG device with its own.
    """
    devices = gpu.get("mig") or ()
    known = {device["uuid"] for device in devices}
    yield None, [process for process in processes if not known.intersection(process.get("mig") or ())]
    for device in devices:
        yield device, [process for process in processes if device["uuid"] in (process.get("mig") or ())]


MIG_LOAD_UNKNOWN = "The load of its MIG devices is not known: only GPUs from Hopper (H100) on report it"


def mig_loads_unknown(gpu: Mapping[str, Any]) -> bool:
    """Return whether a GPU has MIG devices, and the load of none of them is known."""
    devices = gpu.get("mig") or ()
    return bool(devices) and all(device["load"] is None for device in devices)


def mig_name(device: Mapping[str, Any]) -> str:
    """Return the name of a MIG device with the instances that nvidia-smi shows, as "1g.10gb GI 7"."""
    gpu_instance, compute_instance = device.get("gpu_instance"), device.get("compute_instance")
    parts = [str(device.get("profile") or device["uuid"])]
    parts += [f"GI {gpu_instance}"] if gpu_instance else []
    # Most GPU instances have one compute instance, 0.
    return " ".join([*parts, *([f"CI {compute_instance}"] if compute_instance not in {None, "", "0"} else [])])


def totals(gpus: Sequence[Entry]) -> Entry:
    """Return the sums over the GPUs that answer, None where a part is not known, and mean loads over those that report
    one. A GPU in MIG mode reports none, its MIG devices do.
    """
    up = [gpu for gpu in gpus if gpu["up"]]
    loads = [load for gpu in up if (load := gpu["load"] if gpu["load_5m"] is None else gpu["load_5m"]) is not None]
    mig = [device["load"] for gpu in up for device in gpu["mig"] if device["load"] is not None]
    return {
        "gpus": len(gpus),
        "up": len(up),
        "load": _mean(loads),
        "load_gpus": len(loads),
        "mig_load": _mean(mig),
        "mig_devices": sum(len(gpu["mig"]) for gpu in up),
        **{key: _sum([gpu[key] for gpu in up]) for key in _SUMS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
