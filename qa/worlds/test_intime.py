"""Reads of processes that hang: nobody else waits for them."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.drawn import seeds
from tests.needs import require
from tests.sessions.hooks import until

from gpugauge.workload.intime import InTime, ProcessOwner
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.users import Users
from gpugauge.workload.workloads import Workloads

_SECONDS, _REFUSED_SECONDS = 0.1, 0.3
_MANY_SECONDS = 0.2  # a read that does not hang takes less, also on a busy machine
_HUNG = 23451


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def hanging(release: threading.Event) -> Callable[[], bytes]:
    def work() -> bytes:
        release.wait()
        return b""

    return work


def hanging_reads(reads: InTime) -> int:
    return sum(reader.running is not None for reader in reads._left)


def owned(uid: int, cgroup: str = "/a") -> Callable[[], ProcessOwner]:
    return lambda: ProcessOwner(uid, cgroup)


def test_a_read_that_hangs_ends_in_time_and_refuses_its_user_only(release: threading.Event) -> None:
    reads = InTime(_SECONDS, _REFUSED_SECONDS)
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="hangs inside the kernel"):
        reads.read(hanging(release), owned(1))
    taken = time.monotonic() - began
    with pytest.raises(TimeoutError, match="another process of its user hangs"):
        reads.read(lambda: b"mine", owned(1))

    assert taken < _SECONDS + 1
    assert reads.read(lambda: b"theirs", owned(2)) == b"theirs"
    with pytest.raises(ZeroDivisionError):  # no error of the work is a hang
        reads.read(lambda: 1 // 0, owned(2))  # type: ignore[arg-type, return-value]  # no bytes
    assert reads.read(lambda: b"theirs", owned(2)) == b"theirs"


def test_a_user_is_read_again_some_time_after_the_read_has_ended(release: threading.Event) -> None:
    reads = InTime(_SECONDS, _REFUSED_SECONDS)
    with pytest.raises(TimeoutError):
        reads.read(hanging(release), owned(1))
    time.sleep(_REFUSED_SECONDS)  # the time after which it would be read again, if it did not hang
    with pytest.raises(TimeoutError):
        reads.read(lambda: b"", owned(1))

    release.set()
    until(lambda: not hanging_reads(reads))

    assert reads.read(lambda: b"again", owned(1)) == b"again"


def test_the_error_of_a_read_is_raised() -> None:
    def fails() -> bytes:
        raise ProcessLookupError(3, "gone")

    with pytest.raises(ProcessLookupError):
        InTime().read(fails, owned(1))


def test_the_cpu_time_of_reads_is_that_of_who_asks() -> None:
    def works() -> bytes:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return b""

    reads, elsewhere = InTime(), list[float]()
    reads.read(works, owned(1))
    other = threading.Thread(target=lambda: elsewhere.append(reads.cpu_seconds()))
    other.start()
    other.join()

    assert 0.02 <= reads.cpu_seconds() < 0.2
    assert elsewhere == [0.0]


@pytest.mark.everything
@seeds(range(2))
def test_whatever_hangs_the_reads_of_other_cgroups_are_made(seed: int, release: threading.Event) -> None:
    draw = Random(seed)
    reads = InTime(_MANY_SECONDS, 60)
    hung = dict[int, str]()
    for _ in range(200):
        uid = draw.randrange(40)
        cgroup = f"/{uid % 7}"
        hangs = draw.random() < 0.3
        by_cgroup = Counter(hung.values())[cgroup]
        refused = uid in hung or by_cgroup == 4 or len(hung) == 16
        try:
            reads.read(hanging(release) if hangs else lambda: b"read", owned(uid, cgroup))
        except TimeoutError:
            assert hangs or refused
            if not refused:
                hung[uid] = cgroup
        else:
            assert not hangs
            assert not refused
        assert hanging_reads(reads) == len(hung) <= 16


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a folder that every user may enter; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_process_that_holds_the_lock_of_its_memory_holds_up_no_other(public: Path) -> None:
    require(os.geteuid() == 0 and Path("/dev/fuse").exists(), "needs root and FUSE")
    # A process of its own: this one may have threads that a fork does not survive.
    hanging = subprocess.Popen(
        [sys.executable, "-m", "qa.torture.users.fuse", str(public), str(_HUNG)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert hanging.stdout is not None
    held = int(hanging.stdout.readline())
    honest = subprocess.Popen(["/bin/sleep", "60"], user=_HUNG + 1)
    try:
        workloads = Workloads(Procfs(), users=Users(known=False))
        began = time.monotonic()
        hung, found = workloads.resolve(held), workloads.resolve(honest.pid)
        taken = time.monotonic() - began
    finally:
        honest.kill()
        honest.wait()
        hanging.communicate(timeout=20)

    assert taken < 5
    assert hung.user == str(_HUNG)
    assert (found.user, found.command) == (str(_HUNG + 1), "sleep")
