"""Programs of qa.bench.gpu.day: what the hook costs in short steps, and whether it breaks graphs of torch.compile."""

from __future__ import annotations

_TRAIN = """
import json, os, statistics, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
DEVICE = os.environ.get("BENCH_DEVICE", "cuda")
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else int
class Ready(IterableDataset):
    def __init__(self, batch): self.batch = batch
    def __iter__(self):
        for _ in range(64): yield self.batch
def training(width=512, layers=4, batch=64):
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = Ready(torch.randn(batch, width, device=DEVICE))
    def batches():
        while True:
            yield from DataLoader(data, batch_size=None)
    source = batches()
    def step(call=model):
        x = next(source)
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
    return model, optimizer, step
"""
COMPILED = (
    _TRAIN
    + """
import torch._dynamo.utils as counted
torch.manual_seed(0)
model, optimizer, step = training()
call = torch.compile(model, mode="reduce-overhead")
for _ in range(30): step(call)
synchronize(); begin = time.perf_counter()
for _ in range(300): step(call)
synchronize()
print(json.dumps({"part": "end", "graph breaks": sum(counted.counters["graph_break"].values()),
    "graphs": counted.counters["stats"].get("unique_graphs"), "ms": round((time.perf_counter() - begin) / 0.3, 3)}))
"""
)
"""Steps of a compiled model."""

COST = (
    _TRAIN
    + """
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator
((key, after),) = hooks.items()
batch = Iterator.__next__
inner = batch.__closure__[batch.__code__.co_freevars.index("wait")].cell_contents
LOADS = {"0.5 ms": (256, 2, 32, 100, 60), "2 ms": (1024, 8, 512, 50, 40)}
if DEVICE == "cpu":
    LOADS = {"0.5 ms": (256, 2, 32, 10, 6)}
for name, (width, layers, size, number, turns) in LOADS.items():
    model, optimizer, step = training(width, layers, size)
    for _ in range(30): step()
    synchronize()
    blocks = {True: [], False: []}
    for turn in range(turns):
        for on in ((True, False), (False, True))[turn % 2]:
            hooks.clear()
            if on: hooks[key] = after
            Iterator.__next__ = batch if on else inner
            start = time.perf_counter()
            for _ in range(number): step()
            synchronize()
            blocks[on].append(1e6 * (time.perf_counter() - start) / number)
    hooks[key] = after; Iterator.__next__ = batch
    added = [a - b for a, b in zip(blocks[True], blocks[False])]
    middle = statistics.median(added)
    print(json.dumps({"part": name, "with": statistics.median(blocks[True]),
        "without": statistics.median(blocks[False]), "added": middle,
        "spread": statistics.median(abs(v - middle) for v in added)}), flush=True)
print(json.dumps({"part": "end"}))
"""
)
"""Blocks of steps with and without the functions of the hook, in one process; microseconds a step."""
