"""The states and causes of a verdict. Each cause has its evidence, an advice, and where it was proven."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gpugauge.driver.vendors import VENDORS
from gpugauge.verdict.evidence import COUNTS, DeviceEvidence, Evidence

STATES = (
    *("starting", "compiling", "training", "evaluating", "checkpointing", "generating"),
    *("stalled", "training_on_cpu", "held_idle", "not_training", "unknown"),
)

Proof = Literal["gpu", "cpu", "simulated"]
_MIN_DRIVERS = ", ".join(f"{cuda}: {driver}" for v in VENDORS for cuda, driver in v.min_drivers.items())
_Missing = Callable[[Evidence, DeviceEvidence], bool]
_NAMES = re.compile(r"{(\w+)}")
COMPILE = (
    "torch.compile(model, mode='reduce-overhead'), which uses CUDA graphs",
    "then no .item() and no printing in each step",
)
"""The changes that take Python out of a step, the first of them first."""
_LEAST_OFFLOADED = 0.3  # load of a GPU below which offloading alone does not explain its gaps
_SMALL = 0.1  # share of the waits for CPU or storage that excludes them


def _large(share: float | None) -> bool:
    return share is None or share >= _SMALL


# By kind of evidence, what it is, and whether it is missing about a training on one of its GPUs.
NEEDED: Mapping[str, tuple[str, _Missing]] = {
    "load": ("the load of the GPU (not of MIG devices)", lambda _, d: d.busy is None),
    "own load": (
        "the load of the process itself where others use the GPU (not of vGPUs, and not under MPS)",
        lambda _, d: d.overlaps or (d.shared and d.own_busy is None),
    ),
    "counters": ("performance counters (GPM: Hopper and newer)", lambda _, d: d.sm_active is None),
    "copies": ("PCIe traffic (GPM), or pinned memory", lambda e, d: d.transfer is None and e.pinned is not True),
    "clocks": (
        "clocks and the reasons that lower them (not of vGPUs)",
        lambda _, d: d.clock is None or (d.thermal is None and d.power_capped is None),
    ),
    "waits": ("the waits for batches", lambda e, _: e.data_wait is None and e.data_wait_exposed is None),
    "peers": (
        "the rank's own work in its steps, if there are other ranks",
        lambda e, _: (e.world_size or 1) > 1 and e.local_work is None,
    ),
    "offload": (
        "where parameters are on the CPU, a load of 30 % or more: slow code of the program leaves less",
        lambda e, d: e.offloads and ((d.busy if d.own_busy is None else d.own_busy) or 0.0) < _LEAST_OFFLOADED,
    ),
    "thread": ("the sleep of the training thread", lambda e, _: e.asleep is None),
    "throttling": ("throttling by the cgroup", lambda e, _: e.cpu_throttled is None),
    "pressure": ("pressure (PSI) of the cgroup", lambda e, _: e.memory_pressure is None),
    "loader CPU": (
        "throttling by the cgroup, or the loader's waits for a CPU",
        lambda e, _: e.cpu_throttled is None and _large(e.loader_queued),
    ),
    "loader storage": (
        "pressure (PSI) of the cgroup, or the loader's waits for storage",
        lambda e, _: e.memory_pressure is None and _large(e.loader_storage),
    ),
    "thread CPU": (
        "throttling by the cgroup, or the training thread's waits for a CPU",
        lambda e, _: e.cpu_throttled is None and _large(e.runnable),
    ),
}


class Cause(NamedTuple):
    """`evidence` is required for the cause, `change` is what removes it, a tuple if in several steps, `proven` are the
    kinds of machines on which it was reported correctly, `phrase` follows the name of a process, and `colour` is that
    of charts.
    """

    name: str
    evidence: str
    change: str | tuple[str, ...]
    proven: tuple[Proof, ...]
    phrase: str
    colour: str
    on_cpu: bool = False  # it explains why a training that could use a GPU is on the CPU
    needs: tuple[str, ...] = ()  # evidence that shows or excludes it; without it the cause is undecidable
    removed: Mapping[str, Any] = {}  # parts of a Step as they are without it
    partly: bool = False  # whether its change may leave a part of it, or all
    measured: str = ""  # the evidence with values of Evidence.known(); its first part is needed

    @property
    def steps(self) -> tuple[str, ...]:
        """What removes it, one step after the other."""
        return (self.change,) if isinstance(self.change, str) else self.change

    @property
    def advice(self) -> str:
        """The same as one text."""
        return joined(self.steps)


def joined(steps: Sequence[str]) -> str:
    """Return the steps of a change as one text, as the label `advice` has it."""
    return "; ".join(steps)


_ALL = (
    Cause(
        "no_cuda_build",
        "the torch in the process was built without CUDA or HIP, and the host has a GPU",
        "install a build of PyTorch for the GPU, CUDA or ROCm: https://pytorch.org/get-started/locally",
        ("cpu",),
        "uses a PyTorch without CUDA",
        "dark-red",
        on_cpu=True,
    ),
    Cause(
        "no_visible_device",
        "no device is visible to a CUDA or ROCm build: CUDA_VISIBLE_DEVICES (HIP_, ROCR_) hides all, or /dev has none "
        "that the process may open although the driver is loaded",
        "check CUDA_VISIBLE_DEVICES, the container's device request, and for AMD also HIP_VISIBLE_DEVICES, "
        "ROCR_VISIBLE_DEVICES and the groups render and video",
        ("cpu",),
        "sees no GPU",
        "semi-dark-red",
        on_cpu=True,
    ),
    Cause(
        "driver_mismatch",
        f"a CUDA build trains on the CPU, and the driver is older than its CUDA requires ({_MIN_DRIVERS})",
        "update the driver, or install a build for an older CUDA",
        (),
        "needs a newer driver",
        "red",
        on_cpu=True,
    ),
    Cause(
        "unsupported_arch",
        "a CUDA or ROCm build trains on the CPU, and contains no code for the GPU's architecture",
        "install a build that lists the GPU's architecture (torch.cuda.get_arch_list)",
        (),
        "has no code for this GPU",
        "light-red",
        on_cpu=True,
    ),
    Cause(
        "model_on_cpu",
        "steps advance, all parameters are on the CPU, and the host has a GPU",
        "move the model and its batches: model.to('cuda'); `.to()` of a tensor returns a new one",
        ("cpu", "gpu", "simulated"),
        "trains on the CPU",
        "super-light-red",
        on_cpu=True,
    ),
    Cause(
        "data_loading",
        "the training thread waits for batches while the GPU is idle",
        ("more loader workers", "also pinned memory, prefetching, faster storage or decoding"),
        ("cpu", "gpu", "simulated"),
        "waits for its data loader",
        "orange",
        needs=("load", "waits", "loader CPU", "loader storage"),
        removed={"load": 0.0, "loader": 0.0},
        measured="the training thread waits {data_wait} of the time for batches, and the GPU is idle {idle}",
    ),
    Cause(
        "host_bound",
        "gaps between kernels on the GPU, without waits for the loader",
        (*COMPILE, "then larger batches"),
        ("gpu", "simulated"),
        "waits for its own Python code",
        "yellow",
        needs=("load", "waits", "thread", "copies", "thread CPU", "offload"),
        removed={"host": 0.0, "serial": False},
        partly=True,
        measured="the GPU is idle {idle} of the time, the waits for batches take {data_wait}, copies {transfer}",
    ),
    Cause(
        "waiting_elsewhere",
        "gaps between kernels on the GPU, while the training thread sleeps outside of its loader",
        "find what the training thread waits for by its stack, and overlap it with the kernels of another step",
        ("simulated",),
        "waits for something else than its data or its GPU",
        "#e377c2",
        needs=("load", "waits", "thread", "pressure"),
        removed={"asleep": 0.0},
        partly=True,
        measured="the training thread sleeps {asleep} of the time outside of its loader, and the GPU is idle {idle}",
    ),
    Cause(
        "offloaded",
        "gaps between kernels on the GPU, while parameters are on the CPU and the GPU computes with them",
        "it is the price of offloading to the CPU; keep parameters and optimizer on the GPU if they fit",
        ("simulated",),
        "works on the CPU with what is offloaded",
        "light-orange",
        needs=("load", "waits", "offload"),
        removed={"host": 0.0, "serial": False},
        partly=True,
        measured="the GPU is idle {idle} of the time, and {parameters_on_cpu} of the parameters are on the CPU",
    ),
    Cause(
        "transfer",
        "copies between host and device fill the gaps, according to the PCIe traffic",
        "pin_memory=True and non_blocking=True; check the PCIe link's width (gpu_pcie_width)",
        ("simulated",),
        "waits for copies to the GPU",
        "purple",
        needs=("load", "counters"),
        removed={"copy": 0.0, "pinned": True},
        measured="copies between host and device take {transfer} of the time, according to the PCIe traffic, and the "
        "GPU is idle {idle}",
    ),
    Cause(
        "underfilled",
        "kernels run all the time but use few multiprocessors",
        "larger batches, fused kernels, several processes on the GPU",
        ("simulated",),
        "fills only a part of the GPU",
        "blue",
        needs=("load", "counters", "own load", "peers"),
        measured="kernels run {busy} of the time, on {filled} of the multiprocessors",
    ),
    Cause(
        "precision_unused",
        "the GPU is busy with 32-bit arithmetic, TF32 is off, and the tensor cores are idle",
        "torch.set_float32_matmul_precision('high'), or autocast to bfloat16",
        ("gpu", "simulated"),
        "computes without the tensor cores",
        "super-light-blue",
        needs=("load", "counters", "own load", "peers"),
        measured="the tensor cores are busy {tensor_active} of the time, the GPU {busy}, in 32-bit arithmetic with "
        "TF32 off",
    ),
    Cause(
        "waiting_for_peers",
        "the rank's own work is shorter than its step: it waits in a collective for slower ranks",
        "find the rank with the highest torch_local_work_seconds_total and check its cause",
        ("cpu", "simulated"),
        "waits for slower ranks",
        "#8c564b",
        needs=("load", "peers"),
        removed={"peers": 0.0},
        partly=True,
        measured="the rank's own work takes {local_work} of its step, the rest is a wait in a collective for slower "
        "ranks",
    ),
    Cause(
        "slow_network",
        "`waiting_for_peers` on one node, and by NCCL Inspector (`verdict.nccl_inspector_dir`) no rank is late and all "
        "large collectives reach less than 1/8 of their earlier bandwidth, or 1/64 of the NVLinks",
        "check the NVLinks and faults of the GPUs, and by NCCL_DEBUG=INFO how they are connected: P2P is fast, SHM and "
        "NET/Socket are not",
        ("simulated",),
        "waits for the network between its GPUs",
        "#17becf",
        needs=("load", "peers"),
        removed={"peers": 0.0},
        partly=True,
    ),
    Cause(
        "collective",
        "a training stalls while its GPUs are busy: with the hook a rank of several, without it suspected, where all "
        "GPUs of the job are busy, and their power is steady and at most half of what they drew at work, or of their "
        "limit while NCCL says that ranks are behind or missing (`verdict.enable_ras`)",
        "find the rank that does not join the collective (`gpugauge stack`), then end the job",
        ("simulated",),
        "waits in a collective that does not end",
        "#c49c94",
    ),
    Cause(
        "throttled",
        "the GPU lowers its clocks because of temperature, a power brake, or a power limit below its default",
        "check cooling, power and the power limit (gpu_clocks_event_seconds_total)",
        ("simulated",),
        "runs at lowered clocks",
        "#e0226e",
        needs=("load", "own load", "clocks"),
        measured="the clock is at {clock} of its maximum, lowered {slowed} of the time by temperature, a power brake, "
        "or a power limit below its default",
    ),
    Cause(
        "memory_pressure",
        "the allocator freed its cache to retry, or ran out of memory: at most the time that its calls can have cost",
        "smaller batch, gradient checkpointing, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ("simulated",),
        "is short of GPU memory",
        "dark-purple",
        needs=("load",),
        removed={"allocator": 0.0},
        measured="the allocator freed its cache {retries} times in the last minute, and was out of memory {ooms} times",
    ),
    Cause(
        "contention",
        "other processes use the same GPU",
        "give the job a GPU or MIG device of its own",
        ("gpu", "simulated"),
        "shares its GPU with others",
        "super-light-purple",
        needs=("load", "own load"),
        measured="the GPU is busy {busy} of the time, {own_busy} with this process",
    ),
    Cause(
        "cpu_limited",
        "the cgroup is throttled: its CPU quota is used up",
        "raise the CPU limit to at least the number of ranks and loader workers",
        ("cpu", "simulated"),
        "has used up its CPU quota",
        "dark-orange",
        needs=("load", "throttling"),
        measured="the cgroup is throttled {cpu_throttled} of the time, its CPU quota is used up",
    ),
    Cause(
        "memory_swap_io",
        "the process waits for swapped memory or for storage",
        "more memory for the job, fewer workers, data on local disks",
        ("simulated",),
        "waits for memory or storage",
        "dark-yellow",
        needs=("load", "pressure"),
        measured="the process waits {memory_pressure} of the time for swapped memory or for storage",
    ),
    Cause(
        "unused_gpus",
        "GPUs are held and never busy",
        "end processes that hold GPUs without using them; use DistributedDataParallel, or request fewer GPUs",
        ("gpu", "simulated"),
        "holds GPUs that it does not use",
        "dark-blue",
        measured="{unused} of the {held} GPUs that it holds are never busy",
    ),
    Cause(
        "unknown",
        "GPU time was lost, and no measured value explains it",
        "run the program under the hook: gpugauge run -- …",
        ("simulated",),
        "loses GPU time, the cause is not known",
        "#8e8e8e",
    ),
)
CAUSES = {cause.name: cause for cause in _ALL}
UNEXPLAINED = "no measured value explains it: `gpugauge doctor PID` on the node shows what is missing"
"""The advice on `unknown` under the hook where no daemon can say what is missing."""
ON_CPU = tuple(cause.name for cause in _ALL if cause.on_cpu)
UNBOUNDED = frozenset({"unknown", "unused_gpus", "precision_unused"})
"""Causes of which the lost time does not bound the gain."""
BATCHED = frozenset({"underfilled"})
"""Causes whose removal gives more samples/s: the steps of a larger batch are not shorter."""
BUSY_CAUSES = ("underfilled", "precision_unused", "waiting_for_peers", "slow_network", "throttled", "contention")
"""Causes of time in which the GPU is busy: its kernels wait, or run longer than necessary."""
STALLS = "collective"
"""The cause of trainings that stall: their alert is not one about a load."""


def found_by(names: Iterable[str], known: Mapping[str, float]) -> str | None:
    """Return the evidence for causes with its values, as of Evidence.known(); None without a cause."""
    words = {name: f"{value:.0f}" if name in COUNTS else f"{100 * value:.0f} %" for name, value in known.items()}
    found = []
    for cause in (CAUSES[name] for name in names if name in CAUSES):
        parts = [part for part in cause.measured.split(", ") if words.keys() >= set(_NAMES.findall(part))]
        complete = cause.measured and parts and cause.measured.startswith(parts[0])
        found.append(", ".join(parts).format_map(words) if complete else cause.evidence)
    return "; ".join(found) or None


def missing(undecidable: Collection[str]) -> list[str]:
    """Return in words the evidence, one part of it at least, for want of which causes are undecidable."""
    decided = {need for cause in _ALL if cause.name not in undecidable for need in cause.needs}
    needs = {need for cause in _ALL if cause.name in undecidable for need in cause.needs} - decided
    return [text for need, (text, _) in NEEDED.items() if need in needs]


def as_markdown() -> str:
    """Return the tables of docs/verdict.md: the causes, and the evidence that they need."""
    lines = ["| cause | evidence | undecidable without | advice | proven on |", "|---|---|---|---|---|"]
    for cause in _ALL:
        proven = ", ".join(cause.proven) or "unit tests only"
        needs = ", ".join(cause.needs)
        lines.append(f"| `{cause.name}` | {cause.evidence} | {needs} | {cause.advice} | {proven} |")
    lines += ["", "| evidence | of what |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, (text, _) in NEEDED.items()]
    return "\n".join(lines)
