"""The rules of the hook, with a fake torch: calls of CUDA, forks, errors, watch()."""

from pathlib import Path

import pytest

from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages as wire

from .conftest import Run, finished, until


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


def test_cuda_is_called_only_after_the_program_has_initialised_it(listener: Sessions, run: Run, site: str) -> None:
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
    used = wire.Device(0, "GPU-abc-0", 1, 10, 2, 3, 4, 5, 6, "NVIDIA X", "9.0", limit=1000)
    unused = wire.Device(1, "GPU-abc-1", name="NVIDIA X", capability="9.0")
    assert session.snap.devices == (used, unused)
    expected = {"torch": "9.9.0+cu129", "cuda": "12.9", "build": "cuda", "architectures": "sm_80 sm_90a compute_90"}
    expected |= {
        "driver_cuda": "12.9",
        "cudnn": "91002",
        "tf32_matmul": "no",
        "tf32_cudnn": "yes",
        "visible_devices": "2",
    }
    assert expected == {name: session.facts.get(name) for name in expected}


def test_an_allocator_that_records_its_history_is_not_read(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        torch.use_cuda()
        torch._C._cuda_isHistoryEnabled = lambda: True
        torch.Optimizer().step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    allocated = [device.allocated for s in listener.view() if s.snap for device in s.snap.devices]
    assert allocated == [None, None]


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
    counted = {(s.end_reason, s.snap.steps.count) for s in listener.view() if s.snap and s.snap.steps}
    assert counted == {("finished", 4), ("finished", 1)}
    assert len({s.hello.pid for s in listener.view()}) == 2


def test_errors_end_the_hook_and_not_the_training(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        from gpugauge.hook import install
        install.observer.state.snapshot = lambda *_: 1 / 0
        optimizer = torch.Optimizer()
        for _ in range(20):
            optimizer.step()
            install.observer.publish_soon()
        print(torch.Iterator().__next__(), install.observer.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "batch 10\n"


@pytest.mark.parametrize(("loaded", "expected"), [("import torch._dynamo", None), ("", 0)])
def test_compilations_are_unknown_without_dynamo_callbacks(
    loaded: str, expected: int | None, tmp_path: Path, listener: Sessions, run: Run, site: str
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_dynamo.py").touch()
    program = f"""
        import torch
        torch.__path__.append({str(tmp_path / "parts")!r})
        {loaded}
        torch.Optimizer().step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    assert [s.snap.compilations for s in listener.view() if s.snap] == [expected]


@pytest.mark.parametrize(
    "program",
    [
        "gpugauge.hook.watch(); import torch; gpugauge.hook.watch(); input()",
        "import torch; torch.Optimizer(); input()",
        "import torch; torch.DataLoader.starts = 1e9; torch.time.sleep = lambda _: input(); iter(torch.DataLoader())",
    ],
)
def test_a_session_begins_before_the_first_step(program: str, listener: Sessions, run: Run, site: str) -> None:
    process = run(f"import gpugauge.hook; {program}", PYTHONPATH=site)
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
    assert finished(run(program)) == (
        "gpugauge gpugauge.hook gpugauge.hook.arming gpugauge.hook.clock gpugauge.hook.finder\n"
    )


def test_an_unknown_torch_module_is_not_changed(tmp_path: Path, run: Run) -> None:
    (tmp_path / "torch.py").write_text("answer = 42")
    program = """
        import sys
        import torch
        from gpugauge.hook.arming import _finder
        print(torch.answer, _finder in sys.meta_path, "exec_module" in vars(torch.__spec__.loader))
    """
    assert finished(run(program, PYTHONPATH=str(tmp_path))) == "42 False False\n"


def test_torch_can_be_imported_after_a_failed_import(tmp_path: Path, listener: Sessions, run: Run, site: str) -> None:
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


def test_the_exposed_part_of_the_waits_is_measured_on_the_device(listener: Sessions, run: Run, site: str) -> None:
    # A wait is exposed in full while the device is idle, and not at all while the device has more work than that.
    program = """
        import time, torch
        from gpugauge.hook import install
        torch.use_cuda()
        torch.Optimizer().step()
        def wait():
            before = install.observer.state.waits.nanoseconds or 0
            torch.Iterator.takes = 0.05
            torch.Iterator().__next__()
            time.sleep(0.05)
            install.observer.publish(time.perf_counter_ns())
            return round(((install.observer.state.waits.nanoseconds or 0) - before) / 1e6)
        print(wait(), wait())
        torch.work(0.04)
        print(wait())
        torch.cuda.is_current_stream_capturing = lambda: True
        print(wait())
    """
    assert finished(run(program, simulated=True, PYTHONPATH=site)) == "50 50\n10\n0\n"
    until(lambda: [s.connected for s in listener.view()] == [False])
    (snap,) = [s.snap for s in listener.view()]
    assert snap is not None
    assert snap.errors == 0
    assert snap.exposed_wait_seconds == pytest.approx(0.11)


def test_exposed_waits_are_absent_without_a_device(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch
        torch.Optimizer().step()
        torch.Iterator().__next__()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.connected for s in listener.view()] == [False])
    assert [s.snap.exposed_wait_seconds for s in listener.view() if s.snap] == [None]


def test_ticks_replace_the_steps_of_optimizers(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import torch, gpugauge.hook
        optimizer = torch.Optimizer()
        for _ in range(5):
            for _ in range(3):
                optimizer.step()
            gpugauge.hook.tick()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.connected for s in listener.view()] == [False])
    (snap,) = [s.snap for s in listener.view()]
    assert snap is not None
    assert snap.steps is not None
    # The three optimizer steps before the first tick were one step, as the second tick shows.
    assert (snap.step_source, snap.steps.count, snap.errors) == ("tick", 5, 0)


def test_the_first_tick_is_reported_although_the_program_then_waits(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import sys, torch, gpugauge.hook
        gpugauge.hook.watch()
        with gpugauge.hook.phase("load"):
            pass
        gpugauge.hook.tick()
        sys.stdin.read()
    """
    process = run(program, PYTHONPATH=site)
    until(lambda: [s.snap.step_source for s in listener.view() if s.snap] == ["tick"])
    process.communicate()


DEEPSPEED = """
class DeepSpeedEngine:
    def __init__(self, optimizer):
        self.global_steps = self.micro_steps = 0
        self.optimizer = optimizer
    def step(self):
        self.micro_steps += 1
        if self.micro_steps % 2 == 0:
            for part in range(4):
                self.optimizer.step()
            self.global_steps += 1
"""


def test_only_the_steps_of_the_deepspeed_engine_count(tmp_path: Path, listener: Sessions, run: Run, site: str) -> None:
    package = tmp_path / "site" / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "engine.py").write_text(DEEPSPEED)
    program = """
        import torch
        from deepspeed.runtime.engine import DeepSpeedEngine
        engine = DeepSpeedEngine(torch.Optimizer())
        for _ in range(10):
            engine.step()
    """
    finished(run(program, PYTHONPATH=site))
    until(lambda: [s.connected for s in listener.view()] == [False])
    (session,) = listener.view()
    assert session.snap is not None
    assert session.snap.steps is not None
    assert (session.snap.step_source, session.snap.steps.count) == ("deepspeed", 5)
    assert session.facts["parallel"] == "deepspeed"


def test_the_functions_of_the_hook_do_nothing_in_an_unwatched_process(run: Run) -> None:
    program = """
        import gpugauge.hook
        gpugauge.hook.tick()
        with gpugauge.hook.phase("eval"):
            print("fine")
    """
    assert finished(run(program)) == "fine\n"


def test_a_program_may_close_all_descriptors(listener: Sessions, run: Run, site: str) -> None:
    program = """
        import os, torch
        from gpugauge.hook import install
        optimizer = torch.Optimizer()
        optimizer.step()
        os.closerange(3, 256)
        mine = [os.open(os.devnull, os.O_WRONLY) for _ in range(20)]
        install.observer.publish_soon()
        optimizer.step()
        print(*{os.readlink(f"/proc/self/fd/{number}") for number in mine}, install.observer.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "/dev/null 0\n"


def test_the_next_step_ends_a_wait_left_open_by_an_error(run: Run, site: str) -> None:
    program = """
        import torch
        from gpugauge.hook import install
        from gpugauge.hook import record as phases
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        for _ in range(2):
            next(batches), optimizer.step()
        ours = install.observer
        ours.record.batch_due = None  # cannot be compared
        next(batches)
        ours.record.batch_due = 0
        before = ours.record.phase
        optimizer.step()
        print(phases.PHASES[before], phases.PHASES[ours.record.phase], ours.errors)
    """
    assert finished(run(program, PYTHONPATH=site)) == "loading training 1\n"


def test_a_step_and_a_batch_cost_a_few_calls(listener: Sessions, run: Run, site: str) -> None:
    # One for a step, two for a batch, and four for both in drain(), once a second: the cost of every training step.
    program = """
        import gpugauge, os, sys, torch
        from gpugauge.hook import install
        optimizer, batches = torch.Optimizer(), torch.Iterator()
        for _ in range(2):
            next(batches), optimizer.step()
        home, ours = os.path.dirname(gpugauge.__file__), install.observer
        # Nothing is published, also on a slow machine.
        ours.record.step_due = ours.record.batch_due = ours.publish_due = 1 << 62
        number = 0
        def count(frame, event, _):
            global number
            number += event == "call" and frame.f_code.co_filename.startswith(home)
        def calls(function):
            global number
            number = 0
            sys.setprofile(count)
            function()
            sys.setprofile(None)
            return number
        def train():
            for _ in range(1000):
                next(batches), optimizer.step()
        print(calls(train), calls(ours.recorder.drain) // 1000)
    """
    assert finished(run(program, PYTHONPATH=site)) == "3000 4\n"


@pytest.mark.parametrize(
    ("at_start", "later", "expected"), [("1", "1", "yes"), ("0", "0", "no"), (None, None, "no"), (None, "1", None)]
)
def test_blocking_launches_count_if_cuda_began_with_them(
    listener: Sessions, run: Run, site: str, at_start: str | None, later: str | None, expected: str | None
) -> None:
    program = f"""
        import os, torch
        torch.use_cuda()
        if {later!r}:
            os.environ["CUDA_LAUNCH_BLOCKING"] = {later!r}
        torch.Optimizer().step()
    """
    environment = {"CUDA_LAUNCH_BLOCKING": at_start} if at_start else {}
    finished(run(program, PYTHONPATH=site, **environment))
    until(lambda: [s.end_reason for s in listener.view()] == ["finished"])
    assert [s.facts.get("launch_blocking") for s in listener.view()] == [expected]
