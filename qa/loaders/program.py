"""A training with a drawn loader; it prints what it measured itself, by step. The argument is a Loader (draw.py) as
JSON. Without one it forks a training for each line of its input, an Order: torch is imported once for all of them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import gpugauge.hook

Work = dict[str, Any]
Batch = tuple[torch.Tensor, float, float]


def spin(seconds: float) -> None:
    """Use a CPU for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def work(item: Work, index: int) -> None:
    """Do what one batch, or one item of it, costs."""
    spin(item.get("cpu", 0.0))
    if item.get("sleep"):
        time.sleep(item["sleep"])
    files = item.get("files", 0)
    for place in range(files):
        read_cold(Path(item["folder"]) / str((index * files + place) % item["of"]))


def read_cold(path: Path) -> None:
    """Read a file from storage, also if it is cached."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    while os.read(file, 1 << 20):
        pass
    os.close(file)


def tensor(index: int) -> torch.Tensor:
    return torch.full((8,), float(index % 7))


_fetch: list[tuple[float, float]] = []  # time and queued() at the begin of the batch that is being loaded


def begin_fetch() -> None:
    """Begin a batch with its first item."""
    if not _fetch:
        _fetch.append((time.monotonic(), queued()))


class Items(Dataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    """Items by index."""

    def __init__(self, loader: Work) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return int(self._loader["items"])

    def __getitem__(self, index: int) -> torch.Tensor:
        begin_fetch()
        work(self._loader["item"], index)
        return tensor(index)


class Stream(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    """The same items in their order, divided among the workers."""

    def __init__(self, loader: Work) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, int(self._loader["items"]), step):
            begin_fetch()
            work(self._loader["item"], index)
            yield tensor(index)


class Collate:
    """A collate function with work of its own. It returns the batch, and the seconds that its loading took, with the
    part in which it waited for a CPU.
    """

    def __init__(self, loader: Work) -> None:
        self._work = loader["collate"]

    def __call__(self, items: list[torch.Tensor]) -> Batch:
        work(self._work, int(items[0][0]))
        begin, delayed = _fetch.pop()
        return torch.stack(items), time.monotonic() - begin, queued() - delayed


def generator(dataset: Items, collate: Collate, size: int) -> Iterator[Batch]:
    """Batches of a program without a DataLoader."""
    for begin in range(0, len(dataset), size):
        yield collate([dataset[index] for index in range(begin, begin + size)])


def queued() -> float:
    """Return the seconds for which this thread has waited for a CPU."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def batches(loader: Work) -> Any:
    """Return an iterable of batches."""
    dataset, collate = Items(loader), Collate(loader)
    if loader["generator"] and not loader["workers"]:
        return gpugauge.hook.batches(generator(dataset, collate, loader["batch"]))
    return DataLoader(
        Stream(loader) if loader["iterable"] else dataset,
        batch_size=loader["batch"],
        num_workers=loader["workers"],
        collate_fn=collate,
        multiprocessing_context=loader["method"] if loader["workers"] else None,
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers."""
    found = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def train(loader: Work) -> dict[str, Any]:
    """Train for `loader["seconds"]` after the first batch; return the steps, each with the values of measure.Step."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    steps: list[tuple[float, ...]] = []
    iterator = iter(batches(loader))
    next(iterator)
    begin = time.monotonic()
    while (start := time.monotonic()) - begin < loader["seconds"]:
        delayed = queued()
        batch, loading, loading_delayed = next(iterator)
        arrived, delayed_then = time.monotonic(), queued()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        spin(loader["own"] * loader["busy"])
        time.sleep(loader["own"] * (1.0 - loader["busy"]))
        end, delays = time.monotonic(), (delayed_then - delayed, float(loading_delayed), queued() - delayed_then)
        if start - begin > loader["warm"]:
            steps.append((arrived - start, float(loading), end - arrived, *delays, cpu_seconds()))
    return {"steps": steps}


def trained(loader: Work) -> str:
    """Train until the loader's time is over, or until SIGUSR1; return the steps as JSON."""

    def stop(*_: object) -> None:
        loader["seconds"] = 0.0

    signal.signal(signal.SIGUSR1, stop)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return json.dumps(train(loader))


def end() -> None:
    """End at once: the workers need not deliver the rest, and must not use a CPU for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for a worker that is killed
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


def ordered(order: Work) -> None:
    """Train as a forked program: in a cgroup, on some CPUs, with the result in a file."""
    if order["cgroup"]:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # others have no quota
        Path(order["cgroup"]).write_text(str(os.getpid()))
    elif os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))  # before the daemon and its clients
    if order["loader"]["cpus"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: order["loader"]["cpus"]])
    Path(order["result"]).write_text(trained(order["loader"]))
    end()


def serve() -> None:
    """Fork a program for each order; print its pid, and a line when it has ended.

    A child with the command of its parent is a worker of it, as the daemon sees it. So the programs have none.
    """
    for line in sys.stdin:
        order = json.loads(line)
        if between := os.fork():
            os.waitpid(between, 0)
            pid = int(Path(order["pid"]).read_text())
            with contextlib.suppress(ProcessLookupError):  # it has ended
                ended = os.pidfd_open(pid)
                print(pid, flush=True)
                select.select([ended], [], [])
                os.close(ended)
            print("ended", flush=True)
        elif pid := os.fork():
            Path(order["pid"]).write_text(str(pid))
            os._exit(0)
        else:
            try:
                ordered(order)
            finally:
                traceback.print_exc()
                os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(trained(json.loads(sys.argv[1])), flush=True)
        end()
    serve()
