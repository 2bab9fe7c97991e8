import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpugauge.doctor import probe
from gpugauge.doctor.target import ProbeResult, PythonError, ask, find_python
from gpugauge.verdict import cuda_arch as architecture
from tests import needs
from tests.doctor.cases import PYTHON, with_torch

DEVICE = {"name": "NVIDIA H100", "major": 9, "minor": 0, "total_memory": 85 << 30, "uuid": "5a-b"}


def asked(folder: Path, what: Any = "facts", seconds: float = 60.0, **how: Any) -> ProbeResult:
    return ask(PYTHON, what, seconds, with_torch(folder, **how))


def test_facts_of_a_cuda_build_with_a_device(tmp_path: Path) -> None:
    how: dict[str, Any] = {"cuda": "12.8", "available": True, "arch": "sm_90 sm_100", "driver": 12080}

    answer = asked(tmp_path, devices=[DEVICE], **how)

    facts = dict(answer.facts)
    assert answer.ending == ""
    assert facts["architectures"] == ["sm_90", "sm_100"]
    assert facts["devices"] == [
        {"name": "NVIDIA H100", "capability": [9, 0], "memory": 85 << 30, "uuid": "5a-b", "gcn": None}
    ]
    assert (facts["cuda"], facts["driver_cuda"], facts["cudnn"], facts["available"]) == ("12.8", 12080, 91002, True)


def test_a_cuda_build_that_cannot_start_reports_its_error(tmp_path: Path) -> None:
    answer = asked(tmp_path, cuda="12.8", available=False, error="The NVIDIA driver is too old", warn="CUDA init")

    assert answer.facts["error"] == "RuntimeError: The NVIDIA driver is too old"
    assert answer.facts["warnings"] == ["CUDA init"]


def test_other_output_is_ignored(tmp_path: Path) -> None:
    assert asked(tmp_path, noise=True).facts["torch"] == "2.10.0+cu128"


def test_a_python_without_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    )

    answer = ask(PYTHON, "facts", 60, {"PYTHONPATH": str(tmp_path)})

    assert (answer.facts["missing"], answer.ending) == (True, "")


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    answer = asked(tmp_path, on_import="fail")

    assert answer.facts["import_error"] == "ImportError: libcudart.so.12: cannot open shared object file"


def test_a_crash_keeps_earlier_parts(tmp_path: Path) -> None:
    answer = asked(tmp_path, cuda="12.8", available="crash")

    assert answer.ending == "was ended by SIGSEGV while opening CUDA"
    assert answer.facts["cuda"] == "12.8"


@pytest.mark.everything
def test_a_hang_is_ended(tmp_path: Path) -> None:
    answer = asked(tmp_path, seconds=4.0, on_import="hang")

    assert answer.ending == "did not answer within 4 s while importing torch"


def test_something_that_is_no_python(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no such option: -c' >&2; exit 3\n")
    program.chmod(0o755)

    answer = ask(str(program), "facts", 10, {})

    assert (answer.facts, answer.ending) == ({}, "exited with status 3: no such option: -c")


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(PythonError, match="cannot be started: No such file"):
        ask(str(tmp_path / "python"), "facts", 10, {})


def test_the_hook_and_the_current_folder_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "torch.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(here)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = with_torch(elsewhere)
    (elsewhere / "sitecustomize.py").write_text("import os; assert os.environ['GPUGAUGE_HOOK'] == '0'")

    assert ask(PYTHON, "facts", 60, environment).facts["torch"] == "2.10.0+cu128"


def test_timings_with_a_double_of_torch(tmp_path: Path) -> None:
    facts = asked(tmp_path, "timings", cuda="12.8", available=True, lacks="bfloat16").facts

    assert set(facts["matmul"]) == {"float32", "tf32", "float16"}
    assert set(facts["copies"]) == {"pageable", "pinned"}
    assert all(seconds > 0 for seconds in facts["steps"].values())
    assert set(facts["steps"]) == {"cpu", "gpu"}


def test_a_failing_timing_loses_only_itself(tmp_path: Path) -> None:
    facts = asked(tmp_path, "timings", cuda="12.8", available=True, oom=True).facts

    assert facts["steps_error"] == "RuntimeError: CUDA out of memory. Tried to allocate 16.00 MiB."
    assert facts["copies"]["pinned"] > 0


def test_programs_for_other_pythons_run_in_old_ones() -> None:
    vermin = str(Path(PYTHON).with_name("vermin"))
    files = {probe.__file__: "3.8", architecture.__file__: "3.9"}

    for file, oldest in files.items():
        command = [vermin, f"-t={oldest}-", "--no-tips", file]
        result = subprocess.run(command, capture_output=True, text=True, check=False)

        assert result.returncode == 0, result.stdout


@pytest.mark.everything
@pytest.mark.torch
def test_the_training_step_is_a_step_of_the_real_torch() -> None:
    torch = needs.torch()

    assert probe.training_step(torch, "cpu") > 0


@pytest.mark.torch
def test_facts_of_the_real_torch() -> None:
    torch = needs.torch()

    answer = ask(PYTHON, "facts", 100, {})

    assert answer.ending == ""
    assert answer.facts["torch"] == torch.__version__
    assert answer.facts["cuda"] == torch.version.cuda


def write_python(folder: Path) -> str:
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


def test_which_python(tmp_path: Path) -> None:
    active, other = write_python(tmp_path / "active"), write_python(tmp_path / "other")
    on_path = tmp_path / "bin"
    on_path.mkdir()
    (on_path / "python3").symlink_to(other)
    environ = {"PATH": str(on_path)}

    assert find_python(None, environ) == str(on_path / "python3")
    assert find_python(None, {**environ, "VIRTUAL_ENV": str(tmp_path / "active")}) == active
    assert find_python(str(tmp_path / "other"), environ) == other
    assert find_python(other, environ) == other
    with pytest.raises(PythonError, match="no python3 on the PATH"):
        find_python(None, {"PATH": str(tmp_path)})
    with pytest.raises(PythonError, match="nowhere is not an executable program"):
        find_python("nowhere", environ)


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryFile", missing)

    with pytest.raises(PythonError, match=r"TMPDIR\): No usable temporary directory found"):
        ask(PYTHON, "facts", 60, {})
