"""All attacks by name, and their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from qa.torture import hostile_faults
from qa.torture.hostile_faults import Sockets
from qa.torture.subject import Subject
from qa.torture.users import at_hook, at_port
from qa.torture.users.groups import cgroup, joined, users_cgroup
from qa.torture.users.target import Attack, Target

_FIRST_UID = 1234
_THREADS = 4


def _again_and_again(behave: Callable[[Sockets], None], target: Target) -> None:
    """Run a behaviour of the other rows in some threads, without end."""

    def client() -> None:
        while True:
            with contextlib.suppress(OSError):
                behave(target)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: dict[str, Attack] = {
    **at_hook.ATTACKS,
    **at_port.ATTACKS,
    **{name: partial(partial, _again_and_again, behave) for name, behave in hostile_faults.BEHAVIOURS.items()},
}


@contextlib.contextmanager
def attacked(run: Subject, names: Sequence[str]) -> Iterator[None]:
    """Attack a daemon inside the context. Each attack has a user and a cgroup of its own."""
    with contextlib.ExitStack() as stack:
        words = []
        users = stack.enter_context(users_cgroup(f"torture-{run.pid}-users"))
        for number, name in enumerate(names):
            uid = _FIRST_UID + number
            words.append(f"{uid}={name}={stack.enter_context(cgroup(f'torture-{run.pid}-{uid}', users))}")
        command = [sys.executable, "-m", "qa.torture.users", run.hook, str(run.port), str(run.folder), *words]
        command = joined([users], command)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        stack.callback(_end, process)
        assert process.stdout
        if process.stdout.readline() != b"begun\n":
            raise RuntimeError(f"the attacks did not begin: {' '.join(command)}")
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout
    process.stdout.close()
