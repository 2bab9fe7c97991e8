"""Errors of signal handlers, which may be functions, methods, partial functions or objects."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpugauge.hook.wrappers import raised_by_handler
from gpugauge.sessions.listener import Sessions
from gpugauge.wire.messages import Device
from tests.drawn import seeds

from .conftest import Run, finished, until


def raising(*_: object) -> None:
    raise ValueError("of the handler")


class Handler:
    def method(self, *_: object) -> None:
        raising()

    def __call__(self, *_: object) -> None:
        raising()


@pytest.mark.parametrize("handler", [raising, Handler().method, Handler(), functools.partial(raising, 1)])
def test_an_error_of_a_handler_is_known(handler: Callable[..., Any]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except ValueError as error:
        found = raised_by_handler(error)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found


def test_other_errors_are_not_of_a_handler() -> None:
    with pytest.raises(ValueError, match="of the handler") as caught:
        raising()

    assert not raised_by_handler(caught.value)
    assert not raised_by_handler(None)


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


# Each function of the modules raises in turn, then several at once; these are asked by the program, not by the hook.
PROGRAM = """
    import json, random, torch
    from gpugauge.hook import install
    torch.use_cuda()
    torch.cuda.get_allocator_backend = lambda: "native"
    torch._C._cuda_getMemoryFraction = lambda index: 0.5
    optimizer = torch.Optimizer()
    optimizer.step()
    observer, draw = install.observer, random.Random({seed})
    modules = [torch.cuda, torch._C, torch.backends.cudnn, torch.distributed, torch.version]
    names = [(m, n) for m in modules for n, v in vars(m).items()
             if callable(v) and not n.startswith("__") and n not in ("is_initialized", "Event", "use_cuda")]
    def refused(*_):
        raise draw.choice([RuntimeError, NotImplementedError, AssertionError, TypeError, ValueError])("refused")
    lost = []
    for chosen in [[one] for one in names] + [draw.sample(names, draw.randint(2, len(names))) for _ in range(30)]:
        kept = [(m, n, getattr(m, n)) for m, n in chosen]
        for m, n in chosen:
            setattr(m, n, refused)
        before = observer.sequence
        observer.state._scan_due = observer.state._facts_due = 0
        observer.publish_soon()
        optimizer.step()
        if observer.sequence != before + 1 or observer.errors:
            lost.append([n for _, n in chosen])
            observer.errors = 0
        for m, n, value in kept:
            setattr(m, n, value)
    observer.publish_soon()
    optimizer.step()
    print(len(names) > 8, lost)
"""


@seeds(range(3))
def test_a_function_that_raises_stops_no_snapshot(seed: int, listener: Sessions, run: Run, site: str) -> None:
    assert finished(run(PROGRAM.format(seed=seed), PYTHONPATH=site)) == "True []\n"


def reported(listener: Sessions, run: Run, site: str, refusing: str) -> Device:
    """Return the first device of a program in which torch refuses what `refusing` says."""
    program = f"""
        import torch
        torch.use_cuda()
        def refused(*_):
            raise RuntimeError("cudaMallocAsync does not yet support this")
        {refusing}
        optimizer = torch.Optimizer()
        for _ in range(3):
            optimizer.step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    (snap,) = [s.snap for s in listener.view() if s.snap]
    return snap.devices[0]


def test_an_allocator_that_counts_no_errors_has_none(listener: Sessions, run: Run, site: str) -> None:
    """As on an H100 with torch 2.11, which refuses the question for its history; here also that for its share."""
    refusing = 'torch.cuda.get_allocator_backend = lambda: "cudaMallocAsync"; '
    refusing += "torch._C._cuda_getMemoryFraction = torch._C._cuda_isHistoryEnabled = refused"
    device = reported(listener, run, site, refusing)
    assert device.allocated
    assert device.uuid == "GPU-abc-0"
    assert (device.ooms, device.retries, device.limit, device.device_allocs) == (None, None, None, None)


def test_figures_stay_without_the_name_of_the_allocator(listener: Sessions, run: Run, site: str) -> None:
    assert reported(listener, run, site, "torch.cuda.get_allocator_backend = refused").allocated
