"""CUDA is called only in the process that has initialised it. The fake torch records each other call in a file."""

from pathlib import Path

import pytest

from gpugauge.sessions.listener import Sessions

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
