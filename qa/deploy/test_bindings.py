"""The driver's tests with the oldest and the newest binding that pyproject.toml allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The tests that read the simulated library through the binding.
FOLDERS = ("tests/driver/nvidia", "qa/worlds/test_bindings.py", "tests/simulator/nvml", "tests/doctor/test_gpus.py")

pytestmark = [pytest.mark.e2e, pytest.mark.everything]


def bounds() -> str:
    """Return the versions that pyproject.toml allows, as `>=12.560.30,<14`."""
    (found,) = re.findall(r'^  "nvidia-ml-py(.*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def test_there_is_an_upper_bound() -> None:
    assert re.fullmatch(r">=\d+\.\d+\.\d+,<\d+", bounds())


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_driver_is_read_with_another_binding(which: str, tmp_path: Path) -> None:
    wanted = bounds() if which == "newest" else bounds().partition(",")[0].replace(">=", "==")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, f"nvidia-ml-py{wanted}", "--target", str(tmp_path)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import pynvml; print(pynvml.__file__)"
    used = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert used.stdout.startswith(str(tmp_path))

    options = ["-q", "-p", "no:cacheprovider", "-m", "not e2e and not deploy"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *FOLDERS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:]
