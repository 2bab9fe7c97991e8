"""The memory after each step: read at the same point, once a second, in whatever way the steps are counted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpugauge.hook.counts.memory import StepMemory
from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages as wire

from .conftest import Run, finished, until

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
        observer.state.memory.due = observer.live.step_due = observer.publish_due = 0
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
