"""Known mistakes: settings and calls of a training program that cost time in each step, found by reported facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from gpugauge.base.text import whole

Settings = Mapping[str, str]


class Mistake(NamedTuple):
    """`present` returns whether the facts of a process show the mistake, None if they do not decide it. `evidence` says
    when it is shown, `change` what removes it, `proven` on which machine it was planted and found.
    """

    name: str
    present: Callable[[Settings], bool | None]
    evidence: str
    change: str
    proven: Literal["cpu", "simulated"]


def _is(fact: str, answer: str = "yes") -> Callable[[Settings], bool | None]:
    return lambda facts: facts[fact] == answer if facts.get(fact) in {"yes", "no"} else None


def _batch_elsewhere(facts: Settings) -> bool | None:
    batch, model = (facts.get(name, "") for name in ("batch_device", "parameter_device"))
    return batch.startswith("cuda") and batch != model if batch and model.startswith("cuda") else None


def _count(facts: Settings, name: str) -> int | None:
    return whole(facts.get(name))


def _data_parallel(facts: Settings) -> bool | None:
    devices = _count(facts, "dataparallel_devices")
    return None if devices is None else devices > 1


def _pageable_batches(facts: Settings) -> bool | None:
    workers, pinned = _count(facts, "loader_workers"), facts.get("loader_pin_memory")
    if facts.get("parameters_on") != "cuda" or not workers or pinned not in ("yes", "no"):
        return None  # batches of the training thread may be made on the GPU
    return pinned == "no"


def _too_many_threads(facts: Settings) -> bool | None:
    threads, cpus, ranks = (_count(facts, name) for name in ("torch_threads", "cpus", "ranks_on_cpus"))
    if threads is None or cpus is None or ranks is None:
        return None
    # With one thread in each rank, more ranks than CPUs are the mistake, not the threads.
    return threads > 1 and threads * ranks > cpus


MISTAKES = (
    Mistake(
        "launch_blocking",
        _is("launch_blocking"),
        "CUDA_LAUNCH_BLOCKING was set before CUDA was initialised: the program waits for the end of each kernel",
        "unset CUDA_LAUNCH_BLOCKING; it is for debugging",
        "simulated",
    ),
    Mistake(
        "anomaly_detection",
        _is("anomaly_detection"),
        "anomaly detection of autograd is on in at least half of the steps",
        "remove torch.autograd.set_detect_anomaly(True) and detect_anomaly(); they are for debugging",
        "cpu",
    ),
    Mistake(
        "profiler",
        _is("profiler"),
        "a profiler of torch records at least half of the time",
        "profile a few steps: torch.profiler.schedule(wait=…, warmup=…, active=…, repeat=1)",
        "cpu",
    ),
    Mistake(
        "data_parallel",
        _data_parallel,
        "the model is in nn.DataParallel with more than one device: one process copies it to all of them in each step",
        "use DistributedDataParallel with one process for each GPU",
        "simulated",
    ),
    Mistake(
        "empty_cache",
        _is("empty_cache"),
        "torch.cuda.empty_cache() is called in at least half of the steps: each time the driver allocates again",
        "remove torch.cuda.empty_cache() from the training loop; the allocator reuses its memory without it",
        "cpu",
    ),
    Mistake(
        "pageable_batches",
        _pageable_batches,
        "loader workers deliver batches that are not in pinned memory, and all parameters are on a GPU: each copy "
        "waits. It costs no time if the program pins the batches itself",
        "pin_memory=True in DataLoader, and non_blocking=True where batches are copied to the GPU",
        "simulated",
    ),
    Mistake(
        "too_many_threads",
        _too_many_threads,
        "the threads of one operator on the CPU, of all ranks, are more than the CPUs. It costs time where operators "
        "run on the CPU",
        "set OMP_NUM_THREADS to the CPUs of the process, divided by the ranks on them",
        "cpu",
    ),
    Mistake(
        "remote_cpus",
        _is("cpus_near_gpu", "no"),
        "the process may run on no CPU that is near its GPUs (gpu_local_cpus_info): each launch and each copy crosses "
        "the link between the processors",
        "bind the process to the CPUs of its GPU: numactl, --cpu-bind of Slurm, or the topology manager of Kubernetes",
        "simulated",
    ),
    Mistake(
        "narrow_link",
        _is("narrow_link"),
        "the PCIe link of a GPU of the process has fewer lanes than GPU and slot allow: copies take longer",
        "have its PCIe link repaired (GpuPcieDegraded), or use another GPU",
        "simulated",
    ),
    Mistake(
        "stray_gpu",
        _is("stray_gpu"),
        "a rank holds memory on a GPU that has the parameters of another rank, and none of its own",
        "call torch.cuda.set_device(local_rank) before CUDA is used, and load checkpoints with map_location",
        "simulated",
    ),
    Mistake(
        "batch_elsewhere",
        _batch_elsewhere,
        "the loader returns batches on another GPU than that of all parameters: each batch crosses the bus twice",
        "let the loader return batches in pinned memory of the host, and move them to the GPU of the model",
        "simulated",
    ),
)


def found(facts: Settings) -> dict[str, bool]:
    """Return by name whether the process makes a mistake, for those that its facts decide."""
    answers = ((mistake.name, mistake.present(facts)) for mistake in MISTAKES)
    return {name: present for name, present in answers if present is not None}


def as_markdown() -> str:
    """Return the table of docs/verdict.md."""
    lines = ["| mistake | evidence | change | proven on |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.evidence} | {m.change} | {m.proven} |" for m in MISTAKES]
    return "\n".join(lines)
