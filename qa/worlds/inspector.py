"""A double of NCCL Inspector's files, from its inspector_prom.cc, and drawn jobs that write them."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNITS = ("B", "KB", "MB", "GB", "TB")


def traffic(collective: str, ranks: int, size: int) -> float:
    """Return the bytes to which the bus bandwidth of a collective refers (nccl-tests/doc/PERFORMANCE.md)."""
    if collective == "AllReduce":
        return size * 2 * (ranks - 1) / ranks
    return float(size * (ranks - 1) if collective in {"AllGather", "ReduceScatter"} else size)


def label(size: int) -> str:
    """Return the range of a size."""
    place = min(4, int(math.log(size, 1024) + 1e-9)) if size else 0
    number = size // 1024**place
    return f"{number}-{number + 1}{UNITS[place]}"


def lines(
    collective: str,
    ranks: int,
    size: int,
    seconds: Sequence[float],
    name: str = "unknown",
    gpu: int = 0,
    job: str = "1",
) -> str:
    """Return the two lines about collectives of one size on a GPU."""
    whole = [max(1, int(each * 1e6)) for each in seconds]  # microseconds
    bandwidths = [traffic(collective, ranks, size) / 1e9 / (each / 1e6) for each in whole]
    geometric = math.exp(sum(map(math.log, bandwidths)) / len(bandwidths))
    labels = (
        f'version="v6.1",slurm_job_id="{job}",node="gpu-1",gpu="GPU{gpu}",comm_name="{name}",n_nodes="1",'
        f'nranks="{ranks}",collective="{collective}",message_size="{label(size)}",algo_proto="RING_SIMPLE"'
    )
    mean = sum(whole) / len(whole)
    return (
        f"nccl_bus_bandwidth_gbs{{{labels}}} {geometric:.6g}\n"
        f"nccl_collective_exec_time_microseconds{{{labels}}} {mean:.6g}\n"
    )


P2P = 'nccl_p2p_bus_bandwidth_gbs{version="v6.1",p2p_operation="Send",message_size="4-5MB"} 3.2\n'


def write(folder: Path, uuid: str, text: str | bytes, at: float) -> Path:
    """Write the file of a GPU, as of a Unix time. Unlike the plugin, it follows no link that a test has put there."""
    path = folder / f"nccl_inspector_metrics_{uuid.removeprefix('GPU-')}.prom"
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, (at, at))
    return path


def uuid_of(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-00000000abcd"


@dataclass(frozen=True)
class Job:
    """A job of up to eight ranks on a node. In each step it reduces some buckets. A rank is late by what `lateness`
    draws, in seconds.
    """

    ranks: int
    buckets: tuple[tuple[str, int], ...]
    bandwidth: float  # of the network, bytes per second
    noise: float  # of the durations, as that of their logarithm
    lateness: str
    late: float

    def texts(self, dice: random.Random) -> list[str]:
        """Return the files of the ranks about an interval, each of an interval of its own."""
        steps = dice.choice([1, 3, 20, 60])
        spent: list[dict[tuple[str, int], list[float]]] = [{} for _ in range(self.ranks)]
        begins = [dice.choice([0, steps // 2]) for _ in range(self.ranks)]
        for step in range(2 * steps):
            late = self._late(dice, step)
            for bucket in self.buckets:
                lasts = traffic(bucket[0], self.ranks, bucket[1]) / self.bandwidth * math.exp(dice.gauss(0, self.noise))
                for rank in range(self.ranks):
                    if begins[rank] <= step < begins[rank] + steps:
                        spent[rank].setdefault(bucket, []).append(lasts + max(late) - late[rank])
        return [
            "".join(lines(kind, self.ranks, size, seconds, gpu=rank) for (kind, size), seconds in each.items()) + P2P
            for rank, each in enumerate(spent)
        ]

    def _late(self, dice: random.Random, step: int) -> list[float]:
        """Return by how much each rank arrives late."""
        everyone = range(self.ranks)
        if self.lateness == "one":
            return [self.late * (rank == 0) for rank in everyone]
        if self.lateness == "in turn":
            return [self.late * (step % self.ranks == rank) for rank in everyone]
        if self.lateness == "any one":
            chosen = dice.randrange(self.ranks)
            return [self.late * (rank == chosen) for rank in everyone]
        if self.lateness == "half":
            return [self.late * ((rank + step) % 2) for rank in everyone]
        return [dice.expovariate(1 / self.late) if self.late else 0.0 for _ in everyone]


LATENESS = ("one", "in turn", "any one", "half", "drawn")


def drawn(dice: random.Random, bandwidth: float, *, late: bool) -> Job:
    """Return a job on a network, with ranks that are late by a little, or by up to 300 times as long as it works."""
    ranks = dice.randint(2, 8)
    mebi, kinds = 1 << 20, ("AllReduce", "AllGather", "ReduceScatter")
    sizes = [dice.randint(17, 60), dice.randint(100, 900), dice.choice([4, 1500])][: dice.randint(1, 3)]
    buckets = tuple((dice.choice(kinds), size * mebi + dice.randrange(mebi)) for size in sizes)
    lasts = min(traffic(kind, ranks, size) for kind, size in buckets) / bandwidth
    much = 10 ** dice.uniform(-0.5, 2.5) if late else 10 ** dice.uniform(-3, -1.5)
    return Job(ranks, buckets, bandwidth, dice.uniform(0.0, 0.15), dice.choice(LATENESS), much * lasts)
