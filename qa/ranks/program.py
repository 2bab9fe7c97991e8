"""A training of several ranks with one fault. It is run as the program of a user, in the ranks that `server` forks.

A line at which a rank stands still for good ends with a mark that names the fault.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

from gpugauge import hook

WIDTH = 16


def blocking(name: str) -> Callable[[], object]:
    """Return a call that never returns."""
    lock = threading.Lock()
    lock.acquire()
    calls: dict[str, Callable[[], object]] = {
        "sleep": functools.partial(time.sleep, 3600),
        "lock": lock.acquire,
        "queue": queue.Queue().get,
        "storage": functools.partial(select.select, [os.pipe()[0]], [], []),
        "child": functools.partial(subprocess.run, ["sleep", "3600"], check=False),
    }
    return calls[name]


def compute(seconds: float) -> None:
    """Use the CPU for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.rand(64, 64) @ torch.rand(64, 64)


class Rows(Dataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def __len__(self) -> int:
        return 100000

    def __getitem__(self, number: int) -> Any:
        if self.faults("loader", number // 4):
            self.faults.block()  # stuck: loader
        if self.faults("reads", number // 4):
            time.sleep(self.faults.case["extra"] / 4)
        return torch.rand(WIDTH), torch.rand(WIDTH)


class Faults:
    def __init__(self, case: dict[str, Any], rank: int) -> None:
        self.case, self.own = case, rank == case["rank"]
        self.block = blocking(case["block"])

    def __call__(self, name: str, step: int) -> bool:
        return bool(self.own and name == self.case["fault"] and step >= self.case["step"])


class Training:
    def __init__(self, case: dict[str, Any], rank: int) -> None:
        self.case, self.rank, self.size = case, rank, case["size"]
        self.faults, self.paused = Faults(case, rank), False
        self.rest = dist.new_group(list(range(self.size)), group_desc="metrics")
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, WIDTH))
        self.forward: Any = self.model
        if case["kind"] == "ddp":
            self.forward = torch.nn.parallel.DistributedDataParallel(self.model)
        if case["kind"] == "fsdp":
            self.forward = fully_shard(self.model, mesh=init_device_mesh("cpu", (self.size,)))
        self.optimizer = torch.optim.SGD(self.forward.parameters(), lr=0.01)

    def step(self, number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.faults("own", number):
            self.faults.block()  # stuck: own
        if self.faults("ended", number):
            self.end()
        if self.case["kind"] == "pipeline":
            self.stage(x)
        loss = torch.nn.functional.mse_loss(self.forward(x), y)
        if self.faults("mismatch", number):
            dist.barrier()
        if self.faults("computes", number) or self.faults("uneven", number):
            compute(self.case["extra"])
        loss.backward()
        if self.case["kind"] in ("hand", "groups"):
            handles = [dist.all_reduce(each.grad, async_op=True) for each in self.model.parameters()]
            for handle in handles:
                handle.wait()
        if self.case["kind"] == "groups":
            dist.all_reduce(loss.detach(), group=self.rest)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stage(self, x: torch.Tensor) -> None:
        """Receive from the rank before, and send to the one after."""
        buffer = torch.zeros_like(x)
        if self.rank and self.case["handles"]:
            dist.irecv(buffer, self.rank - 1).wait()
        elif self.rank:
            dist.recv(buffer, self.rank - 1)
        if self.rank + 1 < self.size:
            dist.send(x, self.rank + 1)
        total = torch.zeros(1)
        dist.all_reduce(total, group=self.rest)

    def end(self) -> None:
        """End as on a node that is lost: a child keeps the connections open, so that the others wait."""
        if not (child := os.fork()):
            time.sleep(3600)
            os._exit(0)
        Path(f"{self.case['meeting']}.child").write_text(str(child))
        if self.case["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    def save(self, number: int) -> None:
        with hook.phase("save") if self.case["phase"] else nullcontext():
            if self.faults("save", number):
                self.faults.block()  # stuck: save
            if self.case["fault"] == "saves" and self.faults.own:
                time.sleep(self.case["saves"])
            if self.faults("once", number) and not self.paused:
                self.paused = True
                time.sleep(self.case["extra"])
        if self.case["fault"] == "pause" and self.faults.own:
            time.sleep(self.case["pause"])

    def evaluate(self, number: int) -> None:
        self.model.eval()
        with torch.no_grad():
            if self.faults("eval", number):
                self.faults.block()  # stuck: eval
        self.model.train()

    def run(self) -> None:
        loader = DataLoader(Rows(self.faults), batch_size=4, num_workers=0)
        for number, (x, y) in enumerate(loader):
            self.step(number, x, y)
            time.sleep(self.case.get("base", 0.02))
            if number % 10 == 9:
                self.save(number)
                self.evaluate(number)


def main(case: dict[str, Any], rank: int) -> None:
    """Train as one rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["size"]))
    meeting = f"file://{case['meeting']}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=case["size"], timeout=timedelta(seconds=600)
    )
    Training(case, rank).run()


def serve() -> None:
    """Fork the ranks of the case in each line of the standard input, and print their pids."""
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        case, pids = json.loads(line), []
        for rank in range(case["size"]):
            pid = os.fork()
            if not pid:
                main(case, rank)
                os._exit(0)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        sys.stdin.readline()  # the end of the case: its processes are killed
        for pid in pids:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    serve()
