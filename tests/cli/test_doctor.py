import json
from pathlib import Path

from click.testing import CliRunner, Result

from gpugauge.cli import main as cli
from tests.doctor.cases import PYTHON, with_torch
from tests.drawn import cases

DEVICE = {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "total_memory": 85 << 30}


def doctor(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["doctor", "--python", PYTHON, *arguments], env=environ)


def test_a_cpu_build_beside_simulated_devices(tmp_path: Path) -> None:
    result = doctor("--simulate", "node", environ=with_torch(tmp_path))

    assert result.exit_code == 1, result.output
    assert result.output.startswith("SIMULATED: the GPUs below do not exist (scenario node).\n")
    assert "  FAIL  Build              for the CPU only, but there is a GPU [no_cuda_build]" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


@cases(
    ("scenario", "how", "causes"),
    [
        ("node", {"cuda": "12.8", "arch": "sm_80 sm_90"}, []),
        ("node", {"cuda": "13.0", "arch": "sm_90"}, ["driver_mismatch"]),
        ("node", {"cuda": "12.8", "arch": "sm_70 sm_80"}, ["unsupported_arch"]),
        ("failing-card", {"cuda": "12.8", "arch": "sm_90"}, ["transfer"]),
    ],
)
def test_builds_of_torch_against_simulated_machines(
    tmp_path: Path, scenario: str, how: dict[str, str], causes: list[str]
) -> None:
    result = doctor("--simulate", scenario, "--json", environ=with_torch(tmp_path, **how))

    document = json.loads(result.stdout)
    assert [finding["cause"] for finding in document["findings"] if finding["cause"]] == causes
    assert document["simulated"] is True
    assert document["exit_code"] == result.exit_code


def test_hidden_devices(tmp_path: Path) -> None:
    environ = {**with_torch(tmp_path, cuda="12.8", arch="sm_90"), "CUDA_VISIBLE_DEVICES": ""}

    document = json.loads(doctor("--simulate", "node", "--json", environ=environ).stdout)

    (finding,) = [finding for finding in document["findings"] if finding["level"] == "failure"]
    assert (finding["check"], finding["cause"]) == ("visible_devices", "no_visible_device")


def test_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    result = doctor("--simulate", "no-driver", environ=with_torch(tmp_path, cuda="12.8"))

    assert result.exit_code == 1
    assert "FAIL  NVIDIA driver      not usable: driver_not_loaded" in result.output


def test_bad_arguments_are_usage_errors() -> None:
    nowhere = doctor("--simulate", "nowhere")

    assert (nowhere.exit_code, "there is no scenario 'nowhere'" in nowhere.stderr) == (2, True)
    assert ((result := doctor("--url", "n7.invalid")).exit_code, "n7.invalid" in result.stderr) == (2, True)
    assert (doctor("0").exit_code, "'fit.py' is no process id" in doctor("fit.py").stderr) == (2, True)


def test_on_this_machine_as_it_is(tmp_path: Path) -> None:
    result = doctor("--no-timed", "--json", environ=with_torch(tmp_path))

    document = json.loads(result.stdout)
    assert [f for f in document["findings"] if "the check itself failed" in f["found"]] == []
    assert document["torch"]["torch"] == "2.10.0+cu128"
