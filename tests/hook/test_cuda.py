"""CUDA is called only in the process that has initialised it. The fake torch records each other call in a file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpugauge.hook.devices import StepMemory
from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages as wire

from .conftest import FORBIDDEN, Run, finished, until


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


def test_forbidden_call_is_recorded_although_it_is_caught(run: Run, fake_torch: Path) -> None:
    program = """
        import torch
        try:
            torch.cuda.device_count()
        except Exception:
            pass
    """
    finished(run(program, PYTHONPATH=str(fake_torch)))
    calls = fake_torch / FORBIDDEN
    assert calls.read_text().startswith("torch.cuda.device_count() before the program initialised CUDA:\n")
    calls.unlink()


def test_training_on_the_cpu_asks_cuda_nothing(listener: Sessions, run: Run, site: str) -> None:
    # Snapshots with facts and devices are sent at the first step, once a second and at the end.
    program = """
        import time, torch
        from gpugauge.hook import install
        optimizer = torch.Optimizer()
        for _ in range(5):
            torch.Iterator().__next__()
            optimizer.step()
            install.observer.publish(time.perf_counter_ns())
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    (snap,) = [s.snap for s in listener.view()]
    assert snap is not None
    assert (snap.devices, snap.errors, snap.facts.get("visible_devices")) == ((), 0, None)


def test_forked_child_of_a_training_asks_cuda_nothing(listener: Sessions, run: Run, site: str) -> None:
    # The parent measures its waits on the device. In the child CUDA cannot be used, and the waits are not measured.
    program = """
        import os, time, torch
        from gpugauge.hook import install
        torch.use_cuda()
        optimizer = torch.Optimizer()
        def train():
            for _ in range(5):
                torch.Iterator().__next__()
                optimizer.step()
                install.observer.publish(time.perf_counter_ns())
        train()
        assert install.observer.state.waits.used
        if not os.fork():
            train()
            os._exit(0)
        print(os.wait()[1])
    """
    assert finished(run(program, PYTHONPATH=site)) == "0\n"
    until(lambda: len(listener.view()) == 2 and not any(s.connected for s in listener.view()))
    assert [s.snap.errors for s in listener.view() if s.snap] == [0, 0]


def test_wait_that_ends_after_cuda_is_lost_asks_nothing(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import time, torch
        from gpugauge.hook import install
        torch.use_cuda()
        optimizer = torch.Optimizer()
        for _ in range(5):
            torch.Iterator().__next__()
            optimizer.step()
            install.observer.publish(time.perf_counter_ns())
        assert install.observer.state.waits.used
        torch.without_cuda()
        torch.Iterator().__next__()
        print(install.observer.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "0\n"


SECOND = 1_000_000_000


def test_drawn_loops_are_sampled_at_one_point() -> None:
    """Each optimizer of a loop leaves memory of its own: a sample is that of the first one as long as it steps."""
    draw = random.Random(23)
    for _ in range(200):
        held = {"bytes": 0}
        memory = StepMemory(lambda index, held=held: held["bytes"] + index)  # type: ignore[misc]  # it has a default
        optimizers = [10 ** draw.randint(1, 6) + i for i in range(draw.randint(1, 3))]
        now, samples = 0, []
        for step in range(60):
            for optimizer in optimizers:
                now += draw.randint(1, SECOND)
                held["bytes"] = 1000 * optimizer + step
                if now >= memory.due:
                    memory.sample(optimizer, now, {0, 1})
                samples.append(memory.allocated)
        assert {sample[0] // 1000 for sample in samples} == {optimizers[0]}
        assert all(sample[1] == sample[0] + 1 for sample in samples)
        assert len({sample[0] for sample in samples}) > 3
        # The first one steps no more: after a minute another one is taken.
        now += 61 * SECOND
        held["bytes"] = 5
        memory.sample("tick", now, {0})
        assert memory.allocated == {0: 5}


LOOPS = {
    "optimizer": "optimizer.step()",
    "batches first": "torch.Iterator().__next__(); install.observer.publish(time.perf_counter_ns()); optimizer.step()",
    "tick": "gpugauge.hook.step()",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_the_daemon_has_the_memory_after_a_step(listener: Sessions, run: Run, fake_torch: Path, loop: str) -> None:
    program = f"""
        import time, torch
        import gpugauge.hook
        from gpugauge.hook import install
        torch.use_cuda()
        optimizer = torch.Optimizer()
        for _ in range(4):
            {loop}
        observer = install.observer
        observer.state.memory.due = observer.record.step_due = observer.publish_due = 0
        {loop}
        observer.publish(time.perf_counter_ns())
        print(observer.errors)
    """
    assert finished(run(program, PYTHONPATH=str(fake_torch))) == "0\n"
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    (session,) = listener.view()
    assert session.snap is not None
    used, unused = session.snap.devices
    assert (used.step_allocated, used.limit) == (1, 1000)
    assert (unused.step_allocated, unused.limit) == (None, None)
    assert session.facts["current_device"] == "0"


def test_an_earlier_hook_reports_no_such_memory() -> None:
    assert (wire.Device(0).step_allocated, wire.Device(0).limit) == (None, None)
