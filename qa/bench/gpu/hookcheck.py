"""The hook on a real GPU: `python -m qa.bench.gpu.hookcheck`. Each program runs with and without the hook.

The questions are those that a CPU cannot answer: does the hook initialise CUDA, call a synchronisation, break graphs,
change an out-of-memory error, or slow down short steps; and what does the daemon state of each program.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qa.bench.gpu.planted import PORT, Scrapes, process_of

_TRAIN = """
import json, os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
class Ready(IterableDataset):
    def __init__(self, batch): self.batch = batch
    def __iter__(self):
        for _ in range(64): yield self.batch
def training(width=512, layers=4, batch=64, on="cpu", **options):
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, **options)
    data = Ready(torch.randn(batch, width, device=on))
    def batches():
        while True:
            for x in DataLoader(data, batch_size=None):
                yield x.cuda()
    source = batches()
    def step(call=model):
        x = next(source)
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
    return model, optimizer, step
"""
PROGRAMS = {
    # No use of CUDA: the process must not be in the driver's lists, and a forked child can use CUDA.
    "untouched": """
import multiprocessing, subprocess
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)
for _ in range(300):
    optimizer.step(); time.sleep(0.01)
query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
listed = subprocess.run(query, capture_output=True, text=True)
def child(queue):
    queue.put(torch.ones(3, device="cuda").sum().item())
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=[queue]); process.start()
value = queue.get(timeout=60); process.join()
print(json.dumps({"initialised": torch.cuda.is_initialized(), "listed": str(os.getpid()) in listed.stdout.split(),
                  "child": value}))
""",
    "facts": """
model, optimizer, step = training()
for _ in range(200): step(); time.sleep(0.02)
def cost(call, number=300):
    start = time.perf_counter()
    for _ in range(number): call()
    return round(1e6 * (time.perf_counter() - start) / number, 2)
event = torch.cuda.Event(); event.record()
properties = torch.cuda.get_device_properties(0)
print(json.dumps({"us": {"memory_stats_as_nested_dict": cost(lambda: torch.cuda.memory_stats_as_nested_dict(0)),
    "event record": cost(event.record), "event query": cost(event.query)}, "uuid": str(properties.uuid),
    "driver": getattr(torch._C, "_cuda_getDriverVersion", str)(), "architectures": torch.cuda.get_arch_list(),
    "capability": torch.cuda.get_device_capability(0)}))
""",
    "graph": """
model, optimizer, step = training()
x = torch.randn(64, 512, device="cuda")
for _ in range(100): step(); time.sleep(0.01)
stream = torch.cuda.Stream(); stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad()
with torch.cuda.graph(graph):
    loss = model(x).square().mean(); loss.backward(); optimizer.step()
begin = time.monotonic()
while time.monotonic() < begin + 4: graph.replay(); torch.cuda.synchronize()
print(json.dumps({"loss": loss.item() >= 0}))
""",
    "compiled": """
import torch._dynamo.utils as counted
torch.manual_seed(0)
model, optimizer, step = training()
call = torch.compile(model, mode="reduce-overhead")
for _ in range(30): step(call)
torch.cuda.synchronize(); begin = time.perf_counter()
for _ in range(300): step(call)
torch.cuda.synchronize()
print(json.dumps({"graph breaks": sum(counted.counters["graph_break"].values()),
    "graphs": counted.counters["stats"].get("unique_graphs"), "ms": round((time.perf_counter() - begin) / 0.3, 3)}))
""",
    "oom": """
model, optimizer, step = training()
torch.cuda.set_per_process_memory_fraction(2 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
for _ in range(200): step(); time.sleep(0.01)
kept, failed = [], 0
for _ in range(3):
    try:
        while True: kept.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        failed += 1; kept.clear()
    for _ in range(60): step(); time.sleep(0.01)
statistics = torch.cuda.memory_stats(0)
refused = []
for name in ("_cuda_getMemoryFraction", "_cuda_isHistoryEnabled"):
    try: getattr(torch._C, name)(*[0][:name == "_cuda_getMemoryFraction"])
    except Exception as error: refused.append(str(error)[:80])
print(json.dumps({"failed": failed, "ooms": statistics.get("num_ooms"), "retries": statistics.get("num_alloc_retries"),
                  "refused": refused}), flush=True)
while True: kept.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda")); time.sleep(0.01)
""",
    "history": """
torch.cuda.memory._record_memory_history(max_entries=10000)
model, optimizer, step = training()
begin, steps = time.monotonic(), 0
while time.monotonic() < begin + 8: step(); steps += 1
print(json.dumps({"steps": steps > 0, "entries": len(torch.cuda.memory._snapshot()["device_traces"][0]) > 0}))
""",
    "synchronisations": """
from torch.profiler import ProfilerActivity, profile
model, optimizer, step = training()
for _ in range(50): step()
time.sleep(1.2)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
    begin = time.monotonic()
    for _ in range(400): step(); time.sleep(0.005)
calls = {}
for event in profiled.profiler.kineto_results.events():
    name = event.name()
    if name.startswith("cuda") or name.startswith("cu"): calls[name] = calls.get(name, 0) + 1
print(json.dumps({"calls": calls}))
""",
    "killed": """
model, optimizer, step = training()
for _ in range(100): step(); time.sleep(0.01)
print(json.dumps({"spinning": True}), flush=True)
torch.cuda._sleep(int(2e9 * 60)); torch.cuda.synchronize()
""",
}
# Blocks of steps with and without the functions of the hook, in one process; microseconds a step.
_COST = """
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator
import statistics
((key, after),) = hooks.items()
batch = Iterator.__next__
inner = batch.__closure__[batch.__code__.co_freevars.index("wait")].cell_contents
found = {}
LOADS = {"0.5 ms": (256, 2, 32, 100, 60), "2 ms": (1024, 8, 512, 50, 40)}
for name, (width, layers, size, number, turns) in LOADS.items():
    model, optimizer, step = training(width, layers, size, "cuda")
    for _ in range(30): step()
    torch.cuda.synchronize()
    blocks = {True: [], False: []}
    for turn in range(turns):
        for on in ((True, False), (False, True))[turn % 2]:
            hooks.clear()
            if on: hooks[key] = after
            Iterator.__next__ = batch if on else inner
            start = time.perf_counter()
            for _ in range(number): step()
            torch.cuda.synchronize()
            blocks[on].append(1e6 * (time.perf_counter() - start) / number)
    hooks[key] = after; Iterator.__next__ = batch
    added = [a - b for a, b in zip(blocks[True], blocks[False])]
    middle = statistics.median(added)
    found[name] = {"with": statistics.median(blocks[True]), "without": statistics.median(blocks[False]),
                   "added": middle, "spread": statistics.median(abs(v - middle) for v in added)}
print(json.dumps(found))
"""


def run(name: str, source: str, environ: dict[str, str], *, hooked: bool, kill: bool = False) -> dict[str, Any]:
    """Run a program; return what it printed, its exit status and the end of its errors."""
    command = [sys.executable, "-m", "gpugauge", "run", "--"] if hooked else []
    process = subprocess.Popen(
        [*command, sys.executable, "-c", _TRAIN + source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )
    killed = None
    if kill:
        assert process.stdout
        out = process.stdout.readline()
        time.sleep(3.0)
        process.kill()
        killed = time.monotonic()
        errors = process.communicate()[1]
    else:
        try:
            out, errors = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {}
    return {
        "name": name,
        "hooked": hooked,
        "pid": process.pid,
        "status": process.returncode,
        "killed": killed,
        "printed": found,
        "errors": errors.strip().splitlines()[-4:],
    }


def main() -> None:
    """Run all programs and print what they and the daemon state."""
    chosen = sys.argv[2:]
    out = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    log = (out / "hookcheck-daemon.log").open("w")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "gpugauge", "serve", f"--web.listen-address=127.0.0.1:{PORT}"], stdout=log, stderr=log
    )
    kinds = {"": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
    kinds["async"] = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    time.sleep(3.0)
    with Scrapes() as scrapes, concurrent.futures.ThreadPoolExecutor(8) as pool:
        cost = run("cost", _COST, {}, hooked=True) if not chosen or "cost" in chosen else {}
        print(json.dumps(cost), flush=True)
        started = []
        for name, source in PROGRAMS.items():
            for kind, environ in kinds.items() if name == "oom" else [("", {})]:
                for hooked in (True, False) if name not in ("killed", "facts") else (True,):
                    label = f"{name} {kind}".strip()
                    if chosen and label not in chosen:
                        continue
                    started.append(pool.submit(run, label, source, dict(environ), hooked=hooked, kill=name == "killed"))
        results = [future.result() for future in started]
        time.sleep(2.0)
    daemon.terminate()
    daemon.wait(20)
    for result in results:
        pages = [(at, page, process) for at, page in scrapes.pages if (process := process_of(page, result["pid"]))]
        stated: dict[str, Any] = {}
        if pages and result["hooked"]:
            at, page, process = pages[-1]
            for line in page.splitlines():
                names = ("torch_", "training_state", "training_limited")
                if f'process="{process}"' in line and line.startswith(names) and not line.endswith(" 0.0"):
                    stated[line.partition(f'process="{process}"')[0] + line.rpartition("}")[2]] = line
            result["last seen"] = at - (result["killed"] or at)
        result["stated"] = sorted(stated.values())
        print(json.dumps({k: v for k, v in result.items() if k != "stated"}), flush=True)
    (out / "hookcheck.json").write_text(json.dumps([cost, *results]))


if __name__ == "__main__":
    main()
