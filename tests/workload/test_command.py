from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpugauge.workload.command import command_name, is_helper, is_python

CASES = {
    "python train.py --lr 1": "train.py",
    "/opt/conda/bin/python3.11 -u /home/a/train.py --key s3cret": "train.py",
    "python -W ignore -X dev train.py": "train.py",
    "python -Wignore -Xdev train.py": "train.py",
    "python -uW ignore train.py": "train.py",
    "python --check-hash-based-pycs never train.py": "train.py",
    "python -m pkg.train --key s3cret": "pkg.train",
    "python -um pkg.train": "pkg.train",
    "python -mpkg.train": "pkg.train",
    "python -m ipykernel_launcher -f /run/user/1000/kernel.json": "ipykernel_launcher",
    "python -c password='s3cret'": "python",
    "python -ucpassword='s3cret'": "python",
    "python -": "python",
    "python": "python",
    "python -m": "python",
    "python -W": "python",
    "/srv/project/__main__.py": "__main__.py",
    "python /srv/project/__main__.py": "project",
    "python /srv/project/": "project",
    "python3 /usr/local/bin/torchrun --nproc-per-node 8 train.py": "torchrun",
    "pypy3.10 train.py": "train.py",
    "/usr/bin/julia train.jl": "julia",
    "./a.out s3cret": "a.out",
    "-bash": "bash",
    "": "",
}


def test_names() -> None:
    assert {line: command_name(line.encode().split(b" ")).decode() for line in CASES} == CASES
    assert command_name([b"/opt/My App/my tool", b"--quiet"]) == b"my tool"


def test_titles_set_by_programs() -> None:
    titles = {
        b"ray::Worker.train": b"ray::Worker.train",
        b"python train.py --key s3cret": b"python",
        b"VLLM::EngineCore": b"VLLM::EngineCore",
        b"   ": b"",
    }

    assert {title: command_name([title, b"", b""]) for title in titles} == titles


def test_helpers_of_multiprocessing() -> None:
    for module in (b"spawn import spawn_main; spawn_main(pipe_handle=7)", b"forkserver import main"):
        argv = [b"/usr/bin/python3", b"-s", b"-c", b"from multiprocessing." + module, b"--multiprocessing-fork"]
        assert is_helper(argv), module
        assert is_python(argv), module
    assert not is_helper([b"python3", b"train.py"])
    assert not is_python([b"/usr/bin/bash"])
    assert not is_python([])


@given(st.lists(st.binary(max_size=12)), st.sampled_from([b"a.out", b"python", b"python3"]))
def test_arguments_are_never_part_of_the_name(options: list[bytes], program: bytes) -> None:
    argv = [program, b"train.py", b"s3cret", *options]

    assert command_name(argv) == (b"a.out" if program == b"a.out" else b"train.py")


@given(st.lists(st.binary()))
def test_any_command_line_has_a_name_without_folders(argv: list[bytes]) -> None:
    assert b"/" not in command_name(argv)
