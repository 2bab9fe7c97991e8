import os
from pathlib import Path
from typing import Any

import pytest

from gpugauge.doctor import machine, process
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import Finding
from gpugauge.status.model import ProcessStatus, Status, decoded
from tests.doctor.cases import case, findings

PID = 4194305
NAME = "0123456789ab"
Facts = dict[str, Any]
INSIDE: Facts = {"torch": "2.10.0", "gpu_build": True}
OUTSIDE: Facts = {"inside": None}
NOBODY: Facts = {"process": "other", "pid": 1}


def proc(root: Path, *libraries: str, opened: tuple[str, ...] = (), environ: str = "") -> None:
    folder = root / "proc" / str(PID)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{PID} (python) S " + " ".join(map(str, range(1, 50))))
    (folder / "cmdline").write_bytes(b"python\0train.py\0--lr\0001\0")
    (folder / "maps").write_text("".join(f"7f00-7f01 r-xp 0 08:01 1 /venv/torch/lib/{name}\n" for name in libraries))
    (folder / "environ").write_bytes(environ.encode())
    for number, path in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(path)


def known(root: Path, facts: Facts | None = None, problem: str = "", **how: Any) -> Case:
    result = case(root, pid=PID, **how)
    own = {"process": NAME, "pid": PID, "rank": 1, "world_size": 4, "inside": INSIDE, **(facts or {})}
    processes = (decoded(ProcessStatus, own),)
    result.daemon = (None if problem else Status(answer="", timestamp=1.0, version="1", without_gpu=processes), problem)
    return result


def summary(finding: Finding) -> tuple[str, str | None, str]:
    return finding.level, finding.cause, finding.found


def test_a_process_that_trains_on_a_device(tmp_path: Path) -> None:
    devices = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia3", "/tmp/x")
    proc(tmp_path, "libtorch_cpu.so", "libtorch_cuda.so", opened=devices, environ="A=1\0CUDA_VISIBLE_DEVICES=0,3\0")
    training = known(tmp_path)

    assert process.existence(training).found == "4194305: train.py"
    assert process.mapped_torch(training).found == "a CUDA build"
    assert process.open_devices(training).found == "2 open; started with CUDA_VISIBLE_DEVICES='0,3'"
    assert process.daemon(training).found == f"the hook of process {NAME} reports: torch 2.10.0, rank 1 of 4."


def test_a_process_whose_memory_cannot_be_read_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock of its memory: reads of some files hang, and end after a second."""
    proc(tmp_path)
    hangs = known(tmp_path)

    def read(pid: int, name: str, limit: int = 0) -> bytes:
        raise TimeoutError(0, "reading it hangs inside the kernel")

    monkeypatch.setattr(type(hangs.procfs), "read", lambda _, *arguments: read(*arguments))
    assert (found := process.existence(hangs)).level == "warning"
    assert found.found == "4194305: it exists, but its command line is not readable: reading it hangs inside the kernel"
    assert process.mapped_torch(hangs).found == "not readable: reading it hangs inside the kernel"


def test_a_long_variable_of_another_user_does_not_fill_the_terminal(tmp_path: Path) -> None:
    proc(tmp_path, environ="CUDA_VISIBLE_DEVICES=" + "\x1b[2J" * 20_000 + "\0")
    found = process.open_devices(known(tmp_path)).found

    assert len(found) < 1000
    assert found.isprintable()


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (("libtorch_cpu.so",), ("failure", "no_cuda_build")),
        (("libtorch_cpu.so", "libtorch_hip.so"), ("pass", None)),
        (("libc.so",), ("warning", None)),
    ],
)
def test_torch_by_its_libraries(tmp_path: Path, libraries: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    proc(tmp_path, *libraries)

    assert summary(process.mapped_torch(known(tmp_path)))[:2] == expected


def test_a_cpu_build_is_right_where_there_is_no_gpu(tmp_path: Path) -> None:
    proc(tmp_path, "libtorch_cpu.so")
    no_gpu = known(tmp_path, pci={})
    no_gpu.driver = type(no_gpu.driver)("library_not_found")

    assert process.mapped_torch(no_gpu).level == "pass"


def test_unreadable_process(tmp_path: Path) -> None:
    unreadable = known(tmp_path)

    assert process.mapped_torch(unreadable).level == "skipped"
    assert process.open_devices(unreadable).level == "skipped"


def without_gpu(root: Path, facts: Facts | None = None, **how: Any) -> Case:
    result = known(root, facts, pci={}, **how)
    result.driver = type(result.driver)("library_not_found")
    return result


def test_checks_of_the_inside_need_the_hook(tmp_path: Path) -> None:
    checks = (process.state, process.parameters)

    findings = [check(known(tmp_path, OUTSIDE)) for check in checks]

    assert [finding.level for finding in findings] == ["skipped"] * len(checks)
    assert all("hook" in finding.found for finding in findings[1:])


@pytest.mark.parametrize("facts", [OUTSIDE, NOBODY])
def test_a_process_under_the_hook_that_has_not_reported_yet(tmp_path: Path, facts: Facts) -> None:
    proc(tmp_path, "libtorch_cpu.so", environ="A=1\0PYTHONPATH=/venv/lib/gpugauge/hook/bootstrap:/x\0")

    finding = process.daemon(known(tmp_path, facts))

    assert finding.found == "the hook is loaded, and the daemon has received no step or batch."
    assert "gpugauge.hook.step()" in finding.advice
    assert "gpugauge run" not in finding.advice


def test_a_process_with_the_hook_switched_off_is_told_to_use_it(tmp_path: Path) -> None:
    proc(tmp_path, "libtorch_cpu.so", environ="GPUGAUGE_HOOK=0\0PYTHONPATH=/venv/lib/gpugauge/hook/bootstrap\0")

    assert "gpugauge run" in process.daemon(known(tmp_path, OUTSIDE)).advice


def test_an_own_optimizer(tmp_path: Path) -> None:
    assert process.parameters(known(tmp_path)).found == "the hook has seen no optimizer of torch"


def test_causes_that_are_not_decided(tmp_path: Path) -> None:
    facts = {"state": "training", "undecidable": ["data_loading", "host_bound"]}

    assert "training; the waits for batches are not known: declare" in process.state(known(tmp_path, facts)).found


def test_training_on_the_cpu_is_right_where_there_is_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()  # a leftover
    facts: Facts = {"state": "training_on_cpu", "data_wait_ratio": 0.7}
    waits = summary(process.state(without_gpu(tmp_path, {**facts, "level": "poor"})))

    assert summary(process.state(without_gpu(tmp_path, facts))) == ("pass", None, "training on cpu")
    assert waits == ("warning", "data_loading", "training on cpu, it waits for data 70 % of its time")
    assert process.state(known(tmp_path, facts)).level == "failure"  # there is a GPU
    (tmp_path / "dev/nvidia0").touch()
    assert process.state(without_gpu(tmp_path, facts)).level == "failure"


def test_the_cause_of_the_daemon_outweighs_the_missing_gpu(tmp_path: Path) -> None:
    facts = state("training_on_cpu", "no_cuda_build", level="bad")  # the daemon simulates GPUs, or runs elsewhere

    assert summary(process.state(without_gpu(tmp_path, facts)))[:2] == ("failure", "no_cuda_build")


def test_a_machine_without_a_gpu_is_no_fault_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    checks = (machine.graphics_devices, machine.driver, machine.devices, machine.device_files)

    assert [f.level for check in checks for f in findings(check, without_gpu(tmp_path))] == ["skipped"] * 4
    assert machine.graphics_devices(without_gpu(tmp_path)).found == "there is no GPU here: programs train on the CPU"


def test_no_device_open(tmp_path: Path) -> None:
    proc(tmp_path, "libtorch_cuda.so", environ="CUDA_VISIBLE_DEVICES=\0")

    assert summary(process.open_devices(known(tmp_path)))[:2] == ("failure", "no_visible_device")


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    nobody = known(tmp_path, NOBODY)

    assert process.existence(nobody).found == "4194305: there is no such process"
    assert process.existence(known(tmp_path, {"ended": 1.0})).found == "4194305: it has ended"
    assert process.not_visible(nobody) == "there is no such process here"


def test_without_a_daemon_only_the_outside_is_checked(tmp_path: Path) -> None:
    no_daemon = known(tmp_path, problem="http://127.0.0.1:10478/metrics does not answer (refused)")
    assert process.daemon(no_daemon).level == "skipped"
    assert process.not_reported(no_daemon) == "not available without the daemon"


def test_a_process_that_the_daemon_reports_from_outside_or_not_at_all(tmp_path: Path) -> None:
    assert process.daemon(known(tmp_path, OUTSIDE)).found == f"it reports process {NAME} from outside only."
    assert process.daemon(known(tmp_path, NOBODY)).found == "it does not report this process."


def state(now: str, cause: str | None = None, share: float | None = None, level: str = "none") -> Facts:
    changes = [{"cause": cause, "topic": "limit", "change": "change it"}] if cause else []
    known = {"state": now, "limited_by": cause, "limited_by_words": cause and "is slow", "lost_ratio": share}
    return {**known, "changes": changes, "advice": "do it", "level": level}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("skipped", None, "the daemon has no verdict")),
        (state("training"), ("pass", None, "training")),
        (
            state("training", "data_loading", 0.43, "poor"),
            ("warning", "data_loading", "training, it is slow: 43 % of its GPU time is lost"),
        ),
        (state("training", "from_a_later_one", level="poor"), ("warning", None, "training, it is slow")),
        (state("training_on_cpu"), ("failure", "model_on_cpu", "training on cpu")),
        (state("training_on_cpu", "no_cuda_build"), ("failure", "no_cuda_build", "training on cpu, it is slow")),
        (state("stalled", level="bad"), ("failure", None, "stalled")),
        (state("held_idle"), ("pass", None, "held idle")),
        (state("held_idle", level="bad"), ("warning", None, "held idle")),
    ],
)
def test_the_verdict(tmp_path: Path, facts: Facts, expected: tuple[str, str | None, str]) -> None:
    finding = process.state(known(tmp_path, facts))

    assert summary(finding) == expected
    assert bool(finding.advice) == (finding.level in {"warning", "failure"})


def inside(**facts: Any) -> Facts:
    return {"inside": INSIDE | facts}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"cpu": 64 << 20}, ("failure", "model_on_cpu", "64.0 MiB on cpu")),
        ({"cuda:0": 64 << 20}, ("pass", None, "64.0 MiB on cuda:0")),
        ({"cpu": 1 << 20, "cuda:0": 2 << 20}, ("pass", None, "1.0 MiB on cpu, 2.0 MiB on cuda:0")),
    ],
)
def test_parameters(tmp_path: Path, devices: dict[str, int], expected: tuple[str, str | None, str]) -> None:
    assert summary(process.parameters(known(tmp_path, inside(parameter_bytes=devices)))) == expected


def test_parameters_of_a_cpu_build_on_the_cpu_are_right(tmp_path: Path) -> None:
    facts = inside(gpu_build=False, parameter_bytes={"cpu": 1 << 20})

    assert summary(process.parameters(known(tmp_path, facts))) == (
        "pass",
        None,
        "1.0 MiB on cpu, the only device that its torch supports",
    )


def test_a_living_process_of_this_machine() -> None:
    this = case(Path("/"), pid=os.getpid())

    assert process.existence(this).level == "pass"
    assert process.open_devices(this).level in {"pass", "warning", "failure"}


@pytest.mark.parametrize(("error", "says"), [(PermissionError, "it exists"), (ProcessLookupError, "no such process")])
def test_a_process_that_proc_hides(
    error: type[OSError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hidepid=2, /proc has no folder for the processes of other users; kill(2) knows them."""

    def refused(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refused)
    case = Case(Options(pid=123), {}, tmp_path)
    vars(case)["daemon"] = (None, "")

    assert says in process.existence(case).found
