"""The hook's rules, on a torch of one file: what it asks CUDA and when, forks, errors, watch()."""

from pathlib import Path

import pytest

from gpugauge import wire
from gpugauge.sessions import Sessions

from .conftest import Run, finished, until


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


def test_cuda_is_asked_only_after_the_program_has_initialised_it(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        optimizer = torch.Optimizer()
        optimizer.step()
        torch.use_cuda()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    (session,) = listener.view()
    assert session.snap is not None
    assert session.snap.errors == 0
    used = wire.Device(0, "GPU-abc-0", 1, 10, 2, 3, 4, 5, 6)
    assert session.snap.devices == (used,)
    assert (session.hello.facts["torch"], session.hello.facts["cuda"]) == ("9.9.0+cu129", "12.9")


def test_nothing_is_read_from_an_allocator_that_records_its_history(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        torch.use_cuda()
        torch._C._cuda_isHistoryEnabled = lambda: True
        torch.Optimizer().step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    assert [s.snap.devices for s in listener.view() if s.snap] == [()]


def test_a_forked_child_has_a_session_of_its_own(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import os, torch
        optimizer = torch.Optimizer()
        for _ in range(3):
            optimizer.step()
        if not os.fork():
            optimizer.step()
            os._exit(0)
        os.wait()
        optimizer.step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.connected for s in listener.view()] == [False, False])
    counted = {s.end_reason: s.snap.steps.count for s in listener.view() if s.snap and s.snap.steps}
    assert counted == {"finished": 4, "killed": 1}
    assert len({s.hello.pid for s in listener.view()}) == 2


def test_errors_end_the_hook_and_not_the_training(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        from gpugauge.hook import observer
        torch.use_cuda()
        torch.cuda.memory_stats_as_nested_dict = lambda index: 1 / 0
        optimizer = torch.Optimizer()
        for _ in range(20):
            optimizer.step()
            observer._observer.due = 0
        print(torch.Iterator().__next__(), observer._observer.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "batch 10\n"


def test_watch_opens_the_session_before_the_first_step(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import gpugauge.hook
        gpugauge.hook.watch()
        import torch
        gpugauge.hook.watch()
        print("watched", flush=True)
        input()
    """
    process = run(program, PYTHONPATH=site)
    until(lambda: [s.connected for s in listener.view()] == [True])
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_a_process_that_only_imports_torch_opens_no_session(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import sys, torch
        print("gpugauge.hook.observer" in sys.modules)
    """
    assert finished(run(program, PYTHONPATH=site)) == "True\n"
    assert listener.view() == ()


def test_the_hook_loads_nothing_before_torch(run: Run) -> None:
    program = """
        import sys
        print(*sorted(name for name in sys.modules if name.startswith(("gpugauge", "typing", "importlib.util"))))
    """
    assert finished(run(program)) == "gpugauge gpugauge.hook gpugauge.hook.arming\n"


def test_a_torch_that_we_do_not_know_is_left_alone(tmp_path: Path, run: Run) -> None:
    (tmp_path / "torch.py").write_text("answer = 42")
    program = """
        import sys
        import torch
        from gpugauge.hook.arming import _finder
        print(torch.answer, _finder in sys.meta_path, "exec_module" in vars(torch.__spec__.loader))
    """
    assert finished(run(program, PYTHONPATH=str(tmp_path))) == "42 False False\n"


def test_a_failed_import_of_torch_may_be_tried_again(tmp_path: Path, listener: Sessions, run: Run, site: str) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "broken")!r})
        try:
            import torch
        except RuntimeError as error:
            print(error)
        sys.path.pop(0)
        import torch
        torch.Optimizer().step()
    """
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise RuntimeError('planted')")
    assert finished(run(program, PYTHONPATH=site)) == "planted\n"
    until(lambda: len(listener.view()) == 1)
