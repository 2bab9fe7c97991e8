"""Time of the steps without the waits for other ranks: drawn programs of two ranks that measure themselves.

GPUGAUGE_PEERS_DRAWS=100 draws more programs than the few of every run.
"""

import json
import os
import random
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.drawn import EVERYTHING

from .conftest import RunFork, finished

pytestmark = pytest.mark.torch

DRAWS = int(os.environ.get("GPUGAUGE_PEERS_DRAWS", "8" if EVERYTHING else "3"))
TOLERANCE = 0.05  # of the time of the steps

# Runs the cases of its arguments one after another, and prints for each of them the share of the own work in the time
# of the steps: as the program measures it, and as the hook does. A wait is time in which the thread of the program
# neither sleeps by itself nor has or wants a CPU.
PROGRAM = """
    import contextlib, json, os, sys, time
    import torch, torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.nn.parallel import DistributedDataParallel as DDP
    from gpugauge.hook import install
    from gpugauge.hook import peers

    rendezvous, rank, cases = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    slept = waited = queued = 0.0

    def scheduled():
        # Seconds in which this thread had a CPU, and in which it was ready and had none.
        with open("/proc/thread-self/schedstat") as file:
            return [int(number) / 1e9 for number in file.read().split()[:2]]

    def work(seconds):
        global slept
        start, before = time.perf_counter(), sum(scheduled())
        time.sleep(seconds)
        slept += time.perf_counter() - start - (sum(scheduled()) - before)

    @contextlib.contextmanager
    def communication():
        global waited, queued
        start, asleep, (had, wanted) = time.perf_counter(), slept, scheduled()
        yield
        has, wants = scheduled()
        waited += time.perf_counter() - start - (slept - asleep) - (has - had) - (wants - wanted)
        queued += wants - wanted

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, seconds):
            ctx.seconds = seconds
            return value.clone()
        @staticmethod
        def backward(ctx, gradient):
            work(ctx.seconds)
            return gradient, None

    class Sum(torch.nn.Module):
        def __init__(self, *parts):
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)
        def forward(self, value):
            return sum(part(value) for part in self.parts)

    def wrapped(kind, buffers):
        norm = torch.nn.BatchNorm1d(16) if buffers else torch.nn.Linear(16, 16)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), norm, torch.nn.Linear(16, 16))
        if kind in ("ddp", "ddp of ddp"):
            return DDP(DDP(model)) if kind == "ddp of ddp" else DDP(model)
        if kind == "two models":
            return Sum(DDP(model), DDP(torch.nn.Linear(16, 16)))
        if kind == "two forward passes":
            return Sum(*[DDP(torch.nn.Linear(16, 16))] * 2)
        if kind == "sampled":
            strata, peers._STRATUM = peers._STRATUM, {}
            model, peers._STRATUM = DDP(model), strata
            return model
        if kind == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel
            return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        if kind == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        return model

    def reduce(kind, model):
        gradients = [parameter.grad for parameter in model.parameters()]
        if kind == "all_reduce":
            for gradient in gradients:
                dist.all_reduce(gradient)
        elif kind == "async":
            for handle in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                handle.wait()
        elif kind == "functional":
            for gradient in gradients:
                gradient.copy_(functional.all_reduce(gradient, "avg", dist.group.WORLD))
        elif kind == "objects":
            dist.broadcast_object_list([1], src=0)
            dist.barrier()
        elif kind == "monitored":
            dist.monitored_barrier()

    def totals():
        install.observer.publish(time.perf_counter_ns())
        state = install.observer.state
        return state.local_work.nanoseconds, state.recorder.step_tally.nanoseconds

    def train(kind, steps, step, accumulation, no_sync, buffers, period, phase, burst, rank_of_bursts, slow):
        global waited, queued
        model = wrapped(kind, buffers)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        seconds = step / accumulation / 2 * (slow if rank == rank_of_bursts else 1.0)
        first = 150 if kind == "sampled" else 0  # nothing is known before the first measurement
        for number in range(steps + 1):
            with communication():
                for micro in range(accumulation):
                    skip = kind == "ddp" and no_sync and micro < accumulation - 1
                    with model.no_sync() if skip else contextlib.nullcontext():
                        output = model(Backward.apply(torch.ones(4, 16, requires_grad=True), seconds))
                        work(seconds)
                        output.sum().backward()
                reduce(kind, model)
            optimizer.step()
            if number == first:
                (local, total), waited, queued = totals(), 0.0, 0.0
            if rank == rank_of_bursts and number % period == phase and number < steps:
                work(burst)
        after, end = totals()
        return {
            "own": 1 - waited * 1e9 / (end - total), "queued": queued * 1e9 / (end - total),
            "found": (after - local) / (end - total), "errors": install.observer.errors,
        }

    for case in cases:
        dist.barrier()
        print(json.dumps(train(**case)), flush=True)
    before, _ = totals()
    dist.destroy_process_group()
    after, _ = totals()
    child = os.fork()
    if not child:
        os._exit(install.observer.state.local_work.nanoseconds is not None or install.observer.errors)
    assert before == after
    assert os.wait()[1] == 0
"""

# A thread of gloo that still frees a tensor when the interpreter is finalized aborts the process, with and without the
# hook; destroy_process_group does not join these threads (pytorch/pytorch pull request 179291).
END = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""

KINDS = (
    *("all_reduce", "ddp", "fsdp2", "two models", "async", "two forward passes", "functional", "ddp"),
    *("objects", "ddp of ddp", "monitored", "ddp", "fsdp1"),
)


def drawn(number: int) -> dict[str, Any]:
    """Return the case with this number."""
    draw = random.Random(number)
    period = draw.randrange(8, 24, 2)
    return {
        "kind": KINDS[number % len(KINDS)],
        "steps": 48,
        "step": draw.uniform(0.006, 0.02),
        "accumulation": draw.choice((1, 1, 2, 3)),
        "no_sync": draw.random() < 0.5,
        "buffers": draw.random() < 0.3,
        "period": period,
        "phase": draw.choice((0, period // 2)),
        "burst": draw.uniform(0.0, 0.25),
        "rank_of_bursts": draw.randrange(2),
        "slow": draw.choice((1.0, 1.0, 1.3, 2.0)),
    }


def results(fork: RunFork, tmp_path: Path, cases: object, program: str = PROGRAM) -> list[list[Any]]:
    """Return for each rank what the program prints."""
    rendezvous = str(tmp_path / "rendezvous")
    program = textwrap.dedent(program) + END
    ranks = [fork(program, arguments=(rendezvous, str(rank), json.dumps(cases))) for rank in range(2)]
    return [[json.loads(line) for line in finished(process).splitlines()] for process in ranks]


@pytest.mark.everything
@pytest.mark.parametrize("first", range(0, DRAWS, 8))
def test_local_work_is_what_the_program_measures(first: int, fork: RunFork, tmp_path: Path) -> None:
    cases = [drawn(number) for number in range(first, min(first + 8, DRAWS))]
    for case, *ranks in zip(cases, *results(fork, tmp_path, cases), strict=True):
        # On a machine with too few CPUs a thread that waits for a CPU may also wait for another rank, which waits for
        # a CPU itself.
        tolerance = TOLERANCE + sum(result["queued"] for result in ranks)
        for rank, result in enumerate(ranks):
            assert result["errors"] == 0
            assert result["found"] == pytest.approx(result["own"], abs=tolerance), (rank, case, result)


@pytest.mark.everything
def test_one_iteration_in_100_is_enough_for_a_slow_rank(fork: RunFork, tmp_path: Path) -> None:
    # As on devices where DDP would wait for the device at each measurement.
    case = {**drawn(0), "kind": "sampled", "steps": 1000, "step": 0.001, "accumulation": 1, "burst": 0.0, "slow": 4.0}
    case |= {"buffers": False, "rank_of_bursts": 1}
    for found in results(fork, tmp_path, [case]):
        assert found[0]["found"] == pytest.approx(found[0]["own"], abs=0.25 + found[0]["queued"])


@pytest.mark.parametrize("backend", ["cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_nothing_is_known_where_waits_do_not_block(backend: str, fork: RunFork, tmp_path: Path) -> None:
    program = """
        import sys, torch, torch.distributed as dist
        from gpugauge.hook import install
        rendezvous, rank, backend = sys.argv[1:]
        dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=int(rank), world_size=2)
        dist.get_backend_config = lambda group=None: backend.strip('"')
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(5):
            weight.grad = torch.ones(3)
            dist.all_reduce(weight.grad)
            optimizer.step()
            install.observer.publish_soon()
        local = install.observer.state.local_work
        print("[", int(local.nanoseconds is not None), ",", local.waited, ",", install.observer.errors, "]")
        dist.destroy_process_group()
    """
    assert results(fork, tmp_path, backend, program) == [[[0, 0, 0]]] * 2


def test_nothing_is_known_of_a_single_rank(fork: RunFork, tmp_path: Path) -> None:
    program = """
        import sys, torch, torch.distributed as dist
        from gpugauge.hook import install
        dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            install.observer.publish_soon()
        print(install.observer.state.local_work.nanoseconds, install.observer.errors)
        dist.destroy_process_group()
    """
    assert finished(fork(textwrap.dedent(program) + END, arguments=(str(tmp_path / "rendezvous"),))) == "None 0\n"


def test_a_work_of_the_program_keeps_its_own_methods(fork: RunFork) -> None:
    program = """
        import datetime, torch.distributed as dist
        from gpugauge.hook import install
        install.observer.state.local_work.blocking = True
        class Own(dist.Work):
            def wait(self, timeout=None):
                return "own"
        class Inherited(dist.Work):
            pass
        print(Own().wait())
        try:
            Inherited().wait(datetime.timedelta(seconds=0.05))
        except RuntimeError as error:
            print(type(error).__name__)
        print(install.observer.state.local_work.waited >= 50e6)
    """
    assert finished(fork(program)).splitlines()[::2] == ["own", "True"]
