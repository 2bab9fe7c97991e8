"""The result of watch(), and functions as phases."""

from pathlib import Path

import pytest

from gpugauge.hook.watching import Watch
from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages

from .conftest import Run, finished, until


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


@pytest.mark.parametrize("torch", ["", "import torch"])
def test_watch_tells_whether_a_daemon_listens(torch: str, run: Run, site: str, tmp_path: Path) -> None:
    program = f"""
        {torch}
        import gpugauge.hook
        watch = gpugauge.hook.watch(verbose=True)
        print(watch.watching, watch.connected, bool(watch))
    """
    process = run(program, PYTHONPATH=site)
    output, errors = process.communicate(timeout=60)
    assert output == "True False False\n"
    assert errors.startswith(f"gpugauge: no daemon listens on {tmp_path}/hook.sock: correct GPUGAUGE_HOOK_SOCKET, or ")
    listener = Sessions(str(tmp_path / "hook.sock"))
    listener.start()
    process = run(program, PYTHONPATH=site)
    output, errors = process.communicate(timeout=60)
    listener.stop()
    assert output == "True True True\n"
    assert errors == f"gpugauge: this process reports to the daemon at {tmp_path}/hook.sock\n"


def test_watch_tells_that_the_hook_is_switched_off(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch, gpugauge.hook
        watch = gpugauge.hook.watch(verbose=True)
        print(watch.watching, watch.connected)
    """
    process = run(program, PYTHONPATH=site, GPUGAUGE_HOOK="0")
    output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("False False\n", "gpugauge: the hook is switched off by GPUGAUGE_HOOK\n")
    assert listener.view() == ()


def test_functions_run_within_a_phase(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import asyncio, time, torch, gpugauge.hook as hook
        torch.Optimizer().step()
        @hook.phase("eval")
        def validate(depth, *, seconds=0.1):
            "documented"
            time.sleep(seconds)
            return validate(depth - 1) + 1 if depth else 0
        @hook.phase("save")
        async def save():
            time.sleep(0.2)
            await asyncio.sleep(0)
            return "saved"
        @hook.phase("generate")
        def generate():
            yield 1
            time.sleep(0.2)
            return 2
        @hook.phase("compile")
        def failing():
            raise ValueError("mine")
        print(validate(1), validate.__doc__, asyncio.run(save()), list(generate()))
        try: failing()
        except ValueError as error: print(error)
    """
    assert finished(run(program, simulated=True, PYTHONPATH=site)) == "1 documented saved [1]\nmine\n"
    until(lambda: [s.connected for s in listener.view()] == [False])
    (session,) = listener.view()
    assert session.record is not None
    seconds = [session.record.seconds[phase] for phase in ("evaluating", "checkpointing", "generating")]
    assert seconds == pytest.approx([0.2, 0.2, 0.2])


def test_a_frozen_clock_harms_nobody(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import time
        time.perf_counter_ns = lambda: 0
        time.time = lambda: -1.0
        import torch
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        torch.Iterator.takes = 0.1
        for _ in range(5):
            next(batches), optimizer.step()
        from gpugauge.hook import install
        print(install.observer.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "0\n"
    until(lambda: [s.connected for s in listener.view()] == [False])
    (snap,) = (s.snap for s in listener.view())
    assert snap is not None
    assert snap.steps is not None
    assert snap.waits is not None
    assert snap.steps.count == 5
    assert snap.waits["training"] >= 0.5  # by the clock of the machine, which is not frozen


def test_the_remedy_without_a_socket_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUGAUGE_HOOK_SOCKET", raising=False)
    monkeypatch.setenv("GPUGAUGE_HOOK", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(messages, "SYSTEM_SOCKET", f"{tmp_path}/system.sock")
    Watch().print()
    assert capsys.readouterr().err == (
        f"gpugauge: no daemon listens on {tmp_path}/system.sock or {tmp_path}/gpugauge/hook.sock: start one (gpugauge "
        "serve), or set GPUGAUGE_HOOK_SOCKET to the path of its socket. The hook tries again once a second\n"
    )
