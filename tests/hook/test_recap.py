"""The line at the end of a training under `gpugauge run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.hook.recap import _program, _time
from gpugauge.sessions.listener import Sessions

TRAIN = """
import time, torch, gpugauge.hook as hook
optimizer, batches = torch.Optimizer(), torch.Iterator()
def train(steps=10):
    torch.Iterator.takes = 0.03
    for _ in range(steps):
        next(batches)
        time.sleep(0.01)
        optimizer.step()
"""


def errors_of(
    program: str, folder: Path, site: Path, variables: dict[str, str] | None = None, recap: bool = True
) -> str:
    (folder / "train.py").write_text(program)
    environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONPATH": str(site), **(variables or {})}
    environ = launch.environment(environ, str(folder / "hook.sock"), recap)
    command = [sys.executable, str(folder / "train.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""
    return done.stderr


def test_the_line_has_steps_and_shares(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    program = f"{TRAIN}\ntrain()\nwith hook.phase('save'): time.sleep(0.2)"
    line = errors_of(program, tmp_path, fake_torch)
    begin = re.match(r"gpugauge: train.py: 10 steps, ([\d.]+) ms each; of \d+ ms: ", line)
    assert begin, line
    assert 40 <= float(begin.group(1)) < 60
    shares = {part: int(share) for share, part in re.findall(r"(\d+) % ([a-z ]+)", line)}
    assert 40 < shares.pop("waiting for data") < 65
    assert 25 < shares.pop("writing checkpoints") < 40
    assert shares.keys() == {"the rest"}


def test_the_start_of_the_program_is_apart(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    line = errors_of(f"{TRAIN}\ntime.sleep(0.8)\ntrain()", tmp_path, fake_torch)
    found = re.match(r"gpugauge: train.py: 10 steps, [\d.]+ ms each after a start of (\d+) ms; of (\d+) ms: ", line)
    assert found, line
    assert 800 <= int(found.group(1)) < 1600
    assert 400 <= int(found.group(2)) < 800


def test_a_loader_that_is_not_known_is_named(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    line = errors_of(f"{TRAIN}\nfor _ in range(20): time.sleep(0.01), optimizer.step()", tmp_path, fake_torch)
    assert line.endswith(", waits for data not known\n")


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("train(1)", "gpugauge: train.py: 1 step; of "),
        ("import os\ntrain(2)\nos._exit(0)", "gpugauge: train.py: 2 steps, "),
        ("torch.Iterator.takes = 0.1\nfor _ in range(2): next(batches)", "gpugauge: train.py: 2 batches; of "),
        ("train(2)\nraise SystemExit(3)", "gpugauge: train.py: 2 steps, "),
    ],
)
def test_every_end_has_one_line(program: str, line: str, tmp_path: Path, fake_torch: Path) -> None:
    errors = errors_of(f"{TRAIN}\n{program}", tmp_path, fake_torch)
    assert errors.startswith(line)
    assert errors.count("gpugauge:") == 1
    assert errors.endswith("; no daemon was found\n")


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("", {}),  # nothing was trained
        ("train(2)", {"RANK": "1"}),
        ("train(2)", {"GPUGAUGE_HOOK": "0"}),
        ("import sys\ntrain(2)\nsys.stderr.close()", {}),
        ("import os\nif not os.fork(): train(2)\nelse: os.wait()", {}),
        ("import multiprocessing\nmultiprocessing.get_context('fork').Process(target=train, args=(2,)).start()", {}),
    ],
)
def test_other_processes_print_nothing(
    program: str, variables: dict[str, str], tmp_path: Path, fake_torch: Path
) -> None:
    assert errors_of(f"{TRAIN}\n{program}", tmp_path, fake_torch, variables) == ""


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("/data/train.py", "train.py"),
        ("/site/pack/__main__.py", "pack"),
        ("-c", "python -c"),
        ("-", "python"),
        ("", "python"),
    ],
)
def test_the_name_of_the_program(argument: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    assert _program() == name


def test_without_the_option_nothing_is_printed(tmp_path: Path, fake_torch: Path) -> None:
    assert errors_of(f"{TRAIN}\ntrain()", tmp_path, fake_torch, recap=False) == ""


def test_durations_have_the_precision_of_a_reader() -> None:
    times = [0.00012, 0.0421, 0.9996, 1.234, 63.0, 600.0, 4000.0, 8000.0]
    assert [_time(seconds) for seconds in times] == [
        "0.12 ms",
        "42.1 ms",
        "1 s",
        "1.23 s",
        "63 s",
        "10 min",
        "67 min",
        "2 h 13 min",
    ]
