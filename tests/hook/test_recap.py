"""The line at the end of a training under `gpugauge run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.hook import launch
from gpugauge.hook.ends import _program, _time
from gpugauge.sessions.listener import Sessions

from .conftest import SIMULATED_TIME

TRAIN = f"""{SIMULATED_TIME}
import torch, gpugauge.hook as hook
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
    environ = launch.environment(environ, str(folder / "hook.sock")) | ({"GPUGAUGE_HOOK_RECAP": "1"} if recap else {})
    command = [sys.executable, str(folder / "train.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""
    return done.stderr


def test_the_line_has_steps_and_shares(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    program = f"{TRAIN}\ntrain()\nwith hook.phase('save'): time.sleep(0.2)"
    line = errors_of(program, tmp_path, fake_torch)
    assert line.startswith("gpugauge: train.py: 10 steps, 40 ms each; of 600 ms: ")
    shares = {part: int(share) for share, part in re.findall(r"(\d+) % ([a-zA-Z ]+)", line)}
    assert (shares.pop("waiting for data"), shares.pop("writing checkpoints")) == (50, 33)
    # The rest by what the thread does, where the kernel counts it.
    assert shares.keys() <= {"the rest", "own code and computation", "waiting for a CPU", "asleep"}
    assert 16 <= sum(shares.values()) <= 18


def test_waits_that_have_not_ended_are_no_computation(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    """A rank hangs in a collective, by what it answers to the daemon; another one in a batch that never comes."""
    note = "install.observer.state.local_work.note(10, waits=True)"
    peers = f"from gpugauge.hook import install\ntrain()\n{note}\ntime.sleep(30)\n{note}"
    data = "def end(s): time.sleep(30), sys.exit()\ntorch.Iterator.takes = property(end)\nnext(batches)"
    for program, expected in (
        (peers, "99 % waiting for other ranks, 1 % waiting for data"),
        (f"train()\n{data}", "100 %"),
    ):
        line = errors_of(f"import sys\n{TRAIN}\n{program}", tmp_path, fake_torch)
        assert f"of 30.4 s: {expected}" in line


def test_the_start_of_the_program_is_apart(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    line = errors_of(f"{TRAIN}\ntime.sleep(0.8)\ntrain()", tmp_path, fake_torch)
    assert line.startswith("gpugauge: train.py: 10 steps, 40 ms each after a start of 800 ms; of 400 ms: ")


def test_a_loader_that_is_not_known_is_named(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    line = errors_of(f"{TRAIN}\nfor _ in range(20): time.sleep(0.01), optimizer.step()", tmp_path, fake_torch)
    assert line.endswith(", waits for data not known; more: gpugauge report train.py\n")


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


def test_the_line_is_printed_once(tmp_path: Path, fake_torch: Path, listener: Sessions) -> None:
    """And not a second time by a function of atexit that ends the process at once."""
    program = f"import atexit, os\natexit.register(os._exit, 0)\n{TRAIN}\ntrain(2)"
    line = errors_of(program, tmp_path, fake_torch)

    assert line.count("gpugauge:") == 1
    assert "no daemon" not in line


def test_what_a_program_reads_from_its_child_has_no_line(tmp_path: Path, fake_torch: Path) -> None:
    """Only the stderr of `gpugauge run` has it."""
    (tmp_path / "trial.py").write_text(f"{TRAIN}\ntrain(2)\nprint('result')")
    (tmp_path / "train.py").write_text(
        f"{TRAIN}\nimport subprocess, sys\ntrain(3)\n"
        f"read = subprocess.run([sys.executable, {str(tmp_path / 'trial.py')!r}], stdout=-1, stderr=-2, text=True)\n"
        "print(read.stdout)"
    )
    command = [sys.executable, "-m", "gpugauge", "run", "--", sys.executable, str(tmp_path / "train.py")]
    environ = {**os.environ, "PYTHONPATH": f"{fake_torch}:{os.environ.get('PYTHONPATH', '')}", "GPUGAUGE_HOOK": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout == "result\n\n"
    assert done.stderr.count(" steps, ") == 1
    assert "train.py: 3 steps, " in done.stderr


def test_children_of_a_rank_print_nothing(tmp_path: Path, fake_torch: Path) -> None:
    program = f"{TRAIN}\ntrain(3)\nimport multiprocessing\nforked = multiprocessing.get_context('fork')\n"
    program += "child = forked.Process(target=train, args=(2,))\nchild.start()\nchild.join()"
    errors = errors_of(program, tmp_path, fake_torch, {"RANK": "0"})

    assert errors.count("gpugauge:") == 1
    assert "3 steps" in errors


def test_the_first_rank_that_a_program_starts_prints_the_line(tmp_path: Path, fake_torch: Path) -> None:
    program = f"{TRAIN}\nimport multiprocessing, os\nforked = multiprocessing.get_context('fork')\n"
    program += "def rank(number):\n    os.environ['RANK'] = str(number)\n    train(number + 2)\n"
    program += "ranks = [forked.Process(target=rank, args=(number,)) for number in range(2)]\n"
    program += "for each in ranks: each.start()\nfor each in ranks: each.join()"
    errors = errors_of(program, tmp_path, fake_torch)

    assert errors.count("gpugauge:") == 1
    assert "2 steps" in errors


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
