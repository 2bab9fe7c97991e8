"""Whether and how processes use GPUs, and the sums over the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpugauge.driver.advice import WITHOUT_GPU
from gpugauge.status.model import WASTE, GpuStatus, MigStatus, ProcessStatus, Status, Totals
from gpugauge.status.words import runs


def on_gpus(gpus: Iterable[GpuStatus]) -> Iterator[ProcessStatus]:
    """Yield the processes on GPUs, once for each GPU, without those that have ended."""
    return (process for gpu in gpus for process in gpu.processes if not process.ended)


def faulty_first(status: Status) -> list[GpuStatus]:
    """Return the GPUs, those with faults first, and of these those that must be repaired at once."""
    faults = (problem for problem in status.problems if problem.kind not in WASTE)
    faulty = {uuid for problem in faults if not problem.steps for uuid in problem.gpus}
    return sorted(status.gpus, key=lambda gpu: (gpu.uuid not in faulty, gpu.uuid in faulty and gpu.level != "bad"))


def in_use(gpu: GpuStatus) -> bool:
    """Return whether a program other than that of a display uses a GPU."""
    return bool(gpu.processes_hidden) or any(process.role != "display" for process in on_gpus([gpu]))


def is_idle(gpu: GpuStatus) -> bool:
    """Return whether programs hold a GPU, and none of them uses it."""
    states = {process.state for process in on_gpus([gpu]) if process.role != "display"}
    return states == {"held_idle"} and not gpu.processes_hidden


def used_well(gpu: GpuStatus) -> bool:
    """Return whether a process works on a GPU and loses less than half of its time: then it is not wasted."""
    return any(process.level in {"good", "poor"} for process in gpu.processes)


def unhooked(processes: Iterable[ProcessStatus]) -> set[str]:
    """Return the processes whose state is unknown, because they run without the hook."""
    return {process.process for process in processes if process.state_words == "no hook"}


def judging(processes: Iterable[ProcessStatus]) -> set[str]:
    """Return the processes with the hook on which there is no verdict yet."""
    return {process.process for process in processes if process.judging_since is not None and not process.silent}


def silent(processes: Iterable[ProcessStatus]) -> set[str]:
    """Return the processes with the hook from which no report arrives."""
    return {process.process for process in processes if process.silent}


def gpus_words(gpus: Sequence[GpuStatus]) -> str:
    """Return "GPU 3", or "GPUs 0-2, 5"; GPUs without an index by uuid."""
    words = runs(gpu.index for gpu in gpus if gpu.index is not None)
    words += [gpu.uuid for gpu in gpus if gpu.index is None]
    return ("GPU " if len(gpus) == 1 else "GPUs ") + ", ".join(words)


def by_place(
    gpu: GpuStatus, processes: Sequence[ProcessStatus]
) -> Iterator[tuple[MigStatus | None, list[ProcessStatus]]]:
    """Yield the processes of a GPU by place: those on no known MIG device with None, then each device with its own."""
    known = {device.uuid for device in gpu.mig}
    yield None, [process for process in processes if not known.intersection(process.mig or ())]
    for device in gpu.mig:
        yield device, [process for process in processes if device.uuid in (process.mig or ())]


MIG_LOAD_UNKNOWN = "How busy its MIG devices are is not known: the driver reports it from Hopper (H100) on"


def mig_loads_unknown(gpu: GpuStatus) -> bool:
    """Return whether a GPU has MIG devices, and the load of none of them is known."""
    return bool(gpu.mig) and all(device.load is None for device in gpu.mig)


def mig_name(device: MigStatus) -> str:
    """Return the name of a MIG device with the numbers of its instances, as "1g.10gb GI 7"."""
    parts = [device.profile or device.uuid]
    parts += [f"GI {device.gpu_instance}"] if device.gpu_instance else []
    # Most GPU instances have one compute instance, 0.
    return " ".join([*parts, *([f"CI {device.compute_instance}"] if (device.compute_instance or "0") != "0" else [])])


def is_without_gpu(status: Status) -> bool:
    """Return whether a node has no GPU and no trace of one; then a driver that is down is no fault."""
    return not status.gpus and not status.driver.needed and status.driver.reason in WITHOUT_GPU


def totals(gpus: Sequence[GpuStatus]) -> Totals:
    """Return the sums over the GPUs that answer, None where a part is not known, and the means of known loads."""
    up = [gpu for gpu in gpus if gpu.up]
    loads = [gpu.load_5m for gpu in up if gpu.load_5m is not None]
    mig = [device.load for gpu in up for device in gpu.mig if device.load is not None]
    return Totals(
        gpus=len(gpus),
        up=len(up),
        load=_mean(loads),
        load_gpus=len(loads),
        mig_load=_mean(mig),
        mig_devices=sum(len(gpu.mig) for gpu in up),
        memory_used_bytes=total([gpu.memory_used_bytes for gpu in up]),
        memory_total_bytes=total([gpu.memory_total_bytes for gpu in up]),
        power_watts=total([gpu.power_watts for gpu in up]),
        power_limit_watts=total([gpu.power_limit_watts for gpu in up]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def total(values: Sequence[float | None]) -> float | None:
    """Return the sum, None if one of the values is not known, and without values."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
