from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from qa.worlds.trees import Made, proc

from gpugauge.workload.launch import is_display, launch_of
from gpugauge.workload.procfs import Procfs, process_hash

ROOT, ANN = 0, 1000
BOOT = "0f7bd1ae-3c4d-4b0e-9a50-000000000001"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return the processes of ann's session: sshd, her shell, and a terminal multiplexer."""
    made = proc(tmp_path)
    made.process(2, ["sshd: ann@pts/0"], uid=ANN, comm="sshd")
    made.process(3, ["-bash"], parent=2, uid=ANN, comm="bash", session=3, terminal=34816)
    made.process(4, ["tmux"], uid=ANN, comm="tmux: server", session=4)
    return made


def top(made: Made, pid: int, uid: int = ANN) -> str:
    return launch_of(Procfs(str(made.root)), pid, uid).name


def name(program: str, pid: int, start: int = 5000) -> str:
    return f"{program}-{process_hash(BOOT, str(pid), str(start))[:8]}"


def test_ranks_of_torchrun_are_one_launch(made: Made) -> None:
    made.process(10, ["/usr/bin/torchrun", "train.py"], parent=3, session=3, terminal=34816, comm="torchrun")
    for pid in (11, 12):  # torchrun starts each rank in a session of its own
        made.process(pid, ["python", "train.py"], parent=10, session=pid)

    assert top(made, 11) == top(made, 12) == name("torchrun train.py", 10)


@pytest.mark.parametrize(
    ("argv", "called"),
    [
        (
            ["python3", "/usr/bin/accelerate", "launch", "--num_processes=2", "a/fit.py", "--key", "b.py"],
            "accelerate fit.py",
        ),
        (["python3", "-m", "torch.distributed.run", "--config=x.py", "fit.py"], "torch.distributed.run fit.py"),
        (["torchrun", "-m", "pkg.fit"], "torchrun"),
        (["python3", "fit.py", "other.py"], "fit.py"),
    ],
)
def test_a_launcher_is_named_with_its_script_and_no_other_argument(made: Made, argv: list[str], called: str) -> None:
    made.process(10, argv, parent=3, session=3, terminal=34816, comm="x")

    assert top(made, 10) == name(called, 10)


def test_two_launches_in_one_shell_are_two(made: Made) -> None:
    for pid in (10, 11):
        made.process(pid, ["python", "train.py"], parent=3, session=3, terminal=34816)

    assert top(made, 10) == name("train.py", 10)
    assert top(made, 11) == name("train.py", 11)


def test_the_program_of_a_terminal(made: Made) -> None:
    made.process(10, ["python", "train.py"], parent=4, session=10, terminal=34817)
    made.process(11, ["python", "train.py"], parent=10, session=11)

    assert top(made, 11) == name("train.py", 10)


def test_a_command_over_ssh(made: Made) -> None:
    """Its shell has no terminal, and is part of the launch."""
    made.process(10, ["bash", "-c", "torchrun train.py"], parent=2, session=10, comm="bash")
    made.process(11, ["torchrun", "train.py"], parent=10, session=10, comm="torchrun")
    made.process(12, ["python", "train.py"], parent=11, session=12)

    assert top(made, 12) == name("bash", 10)


def test_each_notebook_is_a_launch(made: Made) -> None:
    made.process(10, ["python", "/opt/bin/jupyter-lab"], parent=3, session=3, terminal=34816, comm="jupyter-lab")
    for pid in (11, 12):
        made.process(pid, ["python", "-m", "ipykernel_launcher", "-f", "k.json"], parent=10, session=pid)
    made.process(13, ["python", "-c", "from multiprocessing.spawn import spawn_main"], parent=11, session=11)

    assert top(made, 11) == top(made, 13) == name("ipykernel_launcher", 11)
    assert top(made, 12) == name("ipykernel_launcher", 12)


def test_a_launch_ends_at_another_user(made: Made) -> None:
    made.process(10, ["sudo", "python", "train.py"], parent=3, uid=ROOT, comm="sudo")
    made.process(11, ["python", "train.py"], parent=10, uid=ROOT)

    assert top(made, 11, ROOT) == name("train.py", 11)


def test_a_launch_whose_starter_is_gone(made: Made) -> None:
    made.process(11, ["python", "train.py"], parent=1, session=3)

    assert top(made, 11) == name("train.py", 11)
    assert top(made, 99) == ""


def test_a_loop_of_parents_ends(made: Made) -> None:
    made.process(10, ["a"], parent=11)
    made.process(11, ["b"], parent=10)

    assert top(made, 10)


def test_the_session_of_a_ray_node(made: Made) -> None:
    for arguments, session in (
        (["--session-name=session_2026-01-02_03-04-05_678901_23"], "session_2026-01-02_03-04-05_678901_23"),
        (["--session_dir=/tmp/ray/session_2022-01-02_03-04-05_6_7", "--gcs"], "session_2022-01-02_03-04-05_6_7"),
        (["--nothing"], ""),
    ):
        made.process(10, ["/ray/raylet", "--node_ip_address=10.0.0.7", *arguments], comm="raylet")
        made.process(11, ["ray::RayTrainWorker"], parent=10, comm="ray::RayTrainWo")
        made.process(12, ["python", "-c", "spawn_main"], parent=11)

        assert launch_of(Procfs(str(made.root)), 12, ANN).raylet == session


def test_display_servers() -> None:
    servers = ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_wayland", "sway", "nvidia-cuda-mps-server"]
    others = ["train.py", "Xtrain.py", "swaybert.py", "ollama", "", "blender", "gdmodel.py"]

    assert [name for name in (*servers, *others) if is_display(name)] == servers


def test_real_processes() -> None:
    """Two children of one script are one launch; this test's own process belongs to another one."""
    code = (
        "import subprocess, sys; [subprocess.Popen(['cat']) for _ in '12']; print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        children = (Path("/proc") / f"{child.pid}/task/{child.pid}/children").read_text().split()
        launches = {launch_of(Procfs(), int(pid), os.getuid()).name for pid in children}
        parents = {launch_of(Procfs(), pid, os.getuid()).name for pid in (child.pid, os.getpid())}
        child.stdin.close()

    assert len(children) == 2
    assert len(launches) == 1
    assert launches <= parents
