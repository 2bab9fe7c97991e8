"""Trainings on a real GPU with a planted fault: `python -m qa.bench.gpu.trainings NAME BAD_SECONDS GOOD_SECONDS`.

Each trains with the fault, then without it, and measures itself: the steps of both parts, and in two seconds with the
fault the time in which the GPU computed or copied, as CUPTI records it. It prints a line of JSON after each part.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

DEVICE = os.environ.get("BENCH_DEVICE", "cuda")  # the CPU, to try the program without a GPU
SMALL = DEVICE == "cpu"
_PROFILED_SECONDS = 2.0
_PROFILED_STEPS = 40  # at most: each kernel takes memory and time
_WARM_SECONDS = 2.0  # of each part, in which no steps are counted
Step = Callable[[], None]


def size(number: int) -> int:
    """Return a size of the model, smaller without a GPU."""
    return max(8, number // 64) if SMALL else number


class Batches(IterableDataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    """Yields one batch again and again; loading it takes `seconds`."""

    def __init__(self, batch: Any, seconds: float = 0.0) -> None:
        self.batch, self.seconds = batch, seconds

    def __iter__(self) -> Iterator[Any]:
        while True:
            time.sleep(self.seconds)
            yield self.batch


def mlp(width: int, layers: int) -> nn.Sequential:
    """Return a network on the GPU."""
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*made).to(DEVICE)


def loader(batch: Any, seconds: float = 0.0, workers: int = 0) -> Iterator[Any]:
    """Return the batches of a loader."""
    return iter(DataLoader(Batches(batch, seconds), batch_size=None, num_workers=workers))


def plain(
    model: nn.Module, batches: Iterator[Any], *, half: bool = True, optimizer: Any = None, pinned: bool = False
) -> Step:
    """Return a step of an ordinary training."""
    made = optimizer or torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        x = next(batches).to(DEVICE, non_blocking=pinned)
        made.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            loss = model(x).square().mean()
        loss.backward()
        made.step()

    return step


def healthy(_good: bool) -> Step:
    """Large products in bfloat16, and nothing planted."""
    width = size(4096)
    return plain(mlp(width, 8), loader(torch.randn(size(8192), width, device=DEVICE)))


def data_loading(good: bool) -> Step:
    """Loading takes several times as long as the step."""
    width = size(4096)
    batch = torch.randn(size(1024), width)
    return plain(mlp(width, 8), loader(batch, 0.0 if good else 0.04, workers=0 if good else 1))


def host_bound(good: bool) -> Step:
    """Very many small operations, and a read of the loss in each step; cured by a CUDA graph."""
    model = mlp(256, 100)
    batch = torch.randn(64, 256, device=DEVICE)
    batches = loader(batch)
    if good and not SMALL:
        model = torch.cuda.make_graphed_callables(model, (batch.clone(),))
        return plain(model, batches, half=False, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6, fused=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(next(batches)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def transfer(good: bool) -> Step:
    """Large batches in memory that is not pinned."""
    batch = torch.randn(size(8192), size(8192))  # 256 MiB
    if good and not SMALL:
        batch = batch.pin_memory()
    return plain(mlp(size(8192), 2), loader(batch), pinned=good)


def underfilled(_good: bool) -> Step:
    """Kernels that fill few multiprocessors, all the time: a CUDA graph of small products, many times a step."""
    layer = nn.Linear(256, 256, device=DEVICE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6, fused=not SMALL)
    x = torch.randn(256, 256, device=DEVICE)
    batches = loader(x.clone())

    def products() -> None:
        for _ in range(2000):
            torch.mm(x, x)

    if not SMALL:
        products()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            products()

    def step() -> None:
        optimizer.zero_grad()
        if not SMALL:
            graph.replay()
        layer(next(batches)).square().mean().backward()
        optimizer.step()

    return step


def precision_unused(good: bool) -> Step:
    """Products of 32 bits; cured by TF32."""
    torch.set_float32_matmul_precision("high" if good else "highest")
    width = size(4096)
    return plain(mlp(width, 6), loader(torch.randn(size(4096), width, device=DEVICE)), half=False)


def memory_pressure(good: bool) -> Step:
    """Two activations at a time, each of another size, in little memory: the allocator frees its cache to retry."""
    width = size(1024)
    if not SMALL:
        torch.cuda.set_per_process_memory_fraction(3.6 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    step, kept, draw = plain(mlp(width, 4), loader(torch.randn(size(2048), width, device=DEVICE))), [], random.Random(1)

    def both() -> None:
        number = 1.2 if good else draw.uniform(0.8, 1.5)
        kept.append(torch.empty(int(number * 2 ** (10 if SMALL else 30)), dtype=torch.uint8, device=DEVICE))
        del kept[:-1]
        step()

    return both


def model_on_cpu(_good: bool) -> Step:
    """The model was never moved."""
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = loader(torch.randn(64, 64))

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)

    return step


def cpu_limited(_good: bool) -> Step:
    """A training that needs the whole time of a core; its cgroup has less until it is cured from outside."""
    return host_bound(False)


def contention(_good: bool) -> Step:
    """A healthy training; another process is on its GPU until it is cured from outside."""
    return healthy(True)


def held(_good: bool) -> Step:
    """Memory is held, and nothing computes."""
    kept = torch.empty((1 if SMALL else 8) << 30, dtype=torch.uint8, device=DEVICE)

    def step() -> None:
        time.sleep(0.1)
        assert kept.numel()

    return step


def stalled(_good: bool) -> Step:
    """After 100 steps a kernel runs that does not end: 100 % utilization and no progress."""
    step, done = healthy(True), [0]

    def hang() -> None:
        if done[0] < 100:
            step()
            done[0] += 1
        elif SMALL:
            time.sleep(60.0)
        else:
            torch.cuda._sleep(int(2e9 * 60))
            torch.cuda.synchronize()

    return hang


TRAININGS: dict[str, Callable[[bool], Step]] = {
    function.__name__: function
    for function in (
        healthy,
        data_loading,
        host_bound,
        transfer,
        underfilled,
        precision_unused,
        memory_pressure,
        cpu_limited,
        contention,
        model_on_cpu,
        held,
        stalled,
    )
}


def profiled(step: Step) -> dict[str, Any]:
    """Return the busy time of the GPU in some steps, in seconds: the union of its kernels, and with its copies."""
    activity = torch.profiler.ProfilerActivity
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[activity.CPU if SMALL else activity.CUDA]) as profile:
        synchronize()
        begin, steps = time.monotonic(), 0
        while time.monotonic() < begin + _PROFILED_SECONDS and steps < _PROFILED_STEPS:
            step()
            steps += 1
        synchronize()
        end = time.monotonic()
    events = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name().startswith(("Memcpy", "Memset")))
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch._C._autograd.DeviceType.CUDA
    ]
    kernels = [(first, last) for first, last, copied in events if not copied]
    busy = {"kernels": union(kernels), "with copies": union([(first, last) for first, last, _ in events])}
    return {"steps": steps, "seconds": end - begin, "events": len(events)} | busy


def union(spans: list[tuple[int, int]]) -> float:
    """Return the seconds that spans of nanoseconds cover."""
    covered, until = 0, 0
    for first, last in sorted(spans):
        covered += max(0, last - max(first, until))
        until = max(until, last)
    return covered / 1e9


def synchronize() -> None:
    """Wait for the GPU, if the training uses it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def part(name: str, step: Step, seconds: float) -> None:
    """Train for some seconds and print the steps a second."""
    began = time.monotonic()
    while time.monotonic() < began + _WARM_SECONDS:
        step()
        synchronize()
    begin, steps = time.monotonic(), 0
    while time.monotonic() < begin + seconds - _WARM_SECONDS:
        step()
        steps += 1
        if steps % 8 == 0:
            synchronize()  # so that the host is at most some steps ahead
    synchronize()
    end = time.monotonic()
    told(name, began=began, begin=begin, end=end, rate=steps / (end - begin))


def told(name: str, **facts: Any) -> None:
    """Print a line."""
    print(json.dumps({"part": name} | facts), flush=True)


def main() -> None:
    """Run the training that the arguments name."""
    name, bad, good = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    told("imported", began=time.monotonic())
    make = TRAININGS[name]
    part("bad", make(False), bad)
    if not good:
        return
    signal = os.environ.get("BENCH_CURED")  # a file that asks for the end of what is planted outside
    if signal:
        Path(signal).touch()
        time.sleep(1.0)
    part("good", make(True), good)
    told("profiled", **profiled(make(False)))  # at the end: the host is slower after it


if __name__ == "__main__":
    main()
