import os
import subprocess
import sys

import pytest

from gpugauge.daemon.activation import listen_fds

# The manager writes the process's own id into the environment and passes descriptors from 3 on.
CHILD = """
import os
os.environ["LISTEN_PID"] = str(os.getpid())
for descriptor in (3, 4):
    os.dup2(0, descriptor)
from gpugauge.daemon.activation import listen_fds
first = listen_fds()
print(first, listen_fds(), [os.get_inheritable(fd) for fd in first.values()])
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


def child(**variables: str) -> str:
    command = [sys.executable, "-c", CHILD]
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def test_sockets_by_name_once_and_not_for_children() -> None:
    assert child(LISTEN_FDS="2", LISTEN_FDNAMES="hook:web") == "{'hook': 3, 'web': 4} {} [False, False]\n[]\n"


def test_socket_without_a_name() -> None:
    assert child(LISTEN_FDS="1") == "{'unknown': 3} {} [False]\n[]\n"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "hook"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"},
        {"LISTEN_PID": str(os.getpid())},
    ],
)
def test_nothing_for_another_process_or_without_a_number(environ: dict[str, str]) -> None:
    assert listen_fds(environ) == {}
    assert environ == {}
