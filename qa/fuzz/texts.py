"""Targets for input of the kernel, of orchestrators and of the worker: functions of bytes."""

from __future__ import annotations

import json
import math
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.golden_metrics import rank

from gpugauge.driver.frames import Inbox, reply
from gpugauge.driver.nvidia import bus
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from gpugauge.wire.decoding import decode
from gpugauge.workload import cgroup, environ, kubelet
from gpugauge.workload.command import command_name, is_helper, is_python
from gpugauge.workload.orchestrators import read_jobs
from gpugauge.workload.users import Users
from qa.fuzz.mutate import dumped
from qa.fuzz.target import Attempt, Target, plain

_SESSION = rank(0, 10.0)
assert _SESSION.snap is not None
HELLO, SNAP, BYE = (
    wire.encode(message) for message in (_SESSION.hello, _SESSION.snap, wire.Bye(_SESSION.hello.session, 9, "finished"))
)
WIRE_TOKENS = (
    *(b'"', b"\\ud800", b"\\u0000", b"[", b"]", b"{", b"}", b":", b",", b"NaN", b"Infinity", b"-1", b"1e400", b"null"),
    *(b'"v":[1,99]', b'"kind":"hello"', b'"kind":"snap"', b'"kind":"bye"', b'"log2":', b'"devices":', b"\xff", b"\x00"),
)


def _wire(data: bytes) -> None:
    message = decode(data)
    try:
        again = wire.encode(message)
    except wire.WireError:  # without its escapes, the message is too long
        return
    assert decode(again) == message


def _record(data: bytes) -> None:
    record = wire_record.read(data, 10**15, 1_790_000_000.0)
    if record is not None:
        assert record.phase in wire_record.PHASES
        assert all(math.isfinite(value) and value >= 0 for value in record.seconds.values())


def _written_record() -> bytes:
    memory = bytearray(wire_record.RECORD_BYTES)
    wire_record.write_head(memory)
    wire_record.write(memory, [5, 2, 10**14, 100, 101, *[10**9] * len(wire_record.PHASES), 5, 10**13, 7, 8])
    return bytes(memory)


def _cgroup(folder: Path, _: ExitStack) -> Attempt:
    def attempt(data: bytes) -> None:
        text = data.decode(errors="replace")  # as workload.reader does
        found = cgroup.parse(text)
        assert not found.container_id or len(found.container_id) == 64
        cgroup.directory(text, folder, "cpu")

    return attempt


def _kmsg(data: bytes) -> None:
    assert all(0 <= (found.xid or 0) < 100_000 for found in bus.parse(data))


def _kubelet(data: bytes) -> None:
    given = kubelet.decode(data, ("nvidia.com/",))
    assert all(holder.pod.isprintable() for holders in given.devices.values() for holder in holders)


def _jobs(folder: Path, _: ExitStack) -> Attempt:
    users, file = Users(known=False), folder / "0"

    def attempt(data: bytes) -> None:
        file.write_bytes(data)
        for jobs in read_jobs(folder, users.name).devices.values():
            assert all(job.job_id.isprintable() and len(job.job_id) <= 1000 for job in jobs)

    return attempt


def _process(data: bytes) -> None:
    found = environ.parse(data)
    assert set(found) <= {name.decode() for name in environ.VARIABLES}
    environ.run_identity(found)
    environ.slurm_job(found)
    words = data.split(b"\0")
    command_name(words)
    is_python(words)
    is_helper(words)


def _frames(_: Path, stack: ExitStack) -> Attempt:
    def attempt(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(data)
            theirs.close()
            reply(Inbox(ours).receive())

    return attempt


def _field(number: int, content: bytes | str) -> bytes:
    """Return a length-delimited field of protobuf; the length takes one byte or two."""
    body = content.encode() if isinstance(content, str) else content
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    return bytes([number << 3 | 2]) + size + body


_DEVICES = _field(1, "nvidia.com/gpu") + _field(2, "GPU-3f1c0d1e-8a2b") + _field(2, "nvidia0/gi2")
_CLAIM = _field(4, _field(2, "gpu.nvidia.com") + _field(4, "gpu-3"))
_CONTAINER = _field(3, _field(1, "main") + _field(2, _DEVICES) + _field(5, _CLAIM))
_POD = _field(1, _field(1, "train-0") + _field(2, "ml") + _CONTAINER)

_HASH = "6a1b2c3d4e5f60718293a4b5c6d7e8f90112233445566778899aabbccddeeff0"
_CGROUPS = (
    f"0::/kubepods.slice/kubepods-pod3f1c0d1e_8a2b_4b5e_9c47_1f2e3d4c5b6a.slice/cri-containerd-{_HASH}.scope\n",
    "12:cpu,cpuacct:/slurm/uid_1000/job_88123/step_0\n1:name=systemd:/user.slice/user-1000.slice/session-2.scope\n",
    f"0::/../../system.slice/docker-{_HASH}.scope\n0::/system.slice/n1_slurmstepd.scope/job_7/step_0\n",
)
_XID = b"6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
_READ = {
    "id": 1,
    "op": "read",
    "index": 0,
    "values": {
        "static": {"uuid": "GPU-1", "compute_capability": [9, 0]},
        "fast": {"utilization_percent": 7},
        "processes": {"processes": [{"pid": 7, "kind": "compute", "memory_used_bytes": 4096}]},
    },
    "errors": {"serial": 3},
    "calls": {"nvmlDeviceGetSerial": [1, 0.001, 0.001]},
    "samples": {"gpu": [[1000, 50]]},
    "events": [{"type": "mig"}],
}


def _frame(tree: object) -> bytes:
    body = dumped(tree)
    return len(body).to_bytes(4, "big") + body


TEXTS = (
    Target(
        "hook messages",
        plain(_wire),
        (wire.WireError,),
        (HELLO, SNAP, BYE),
        WIRE_TOKENS,
        tuple(map(json.loads, (HELLO, SNAP, BYE))),
    ),
    Target(
        "hook pages", plain(_record), (), (_written_record()[:256],), (b"gpg1", b"\xff" * 8, b"\0" * 8, b"\x40\0\0\0")
    ),
    Target(
        "cgroup lines",
        _cgroup,
        (),
        tuple(text.encode() for text in _CGROUPS),
        (b":", b"/", b"\n", b"/..", b"/pod", b"user-", b".slice", b".scope", b"job_", b"\xd9\xa3", b"\0", b"9" * 50),
    ),
    Target(
        "kernel log lines",
        plain(_kmsg),
        (),
        (_XID, _XID.replace(b"0)", b"0 GPU-I:05)"), b"30,1,1,-;NVRM: Xid (0000:3b:00): 13, x\n SUBSYSTEM=pci\n"),
        (b"NVRM: Xid (PCI:", b";", b",", b"\n", b"\x1c", b"0000:3b:00", b"): ", b"9" * 50, b"\0", b"\xff"),
    ),
    Target(
        "kubelet answers",
        plain(_kubelet),
        (ValueError,),
        (_POD, _POD * 3, b""),
        (b"\xff" * 9 + b"\x01", b"\x0a\x00", b"\x0a\x02\x0a\x00", b"\x08\x01", b"\x80", b"nvidia.com/", _CONTAINER),
    ),
    Target(
        "Slurm mapping files",
        _jobs,
        (),
        (b"88123 1000\n88124\n", b"7\n"),
        (b"\n", b" ", b"\0", b"\xff", b"4294967296", b"\xc2\xb2", b"\x1c", b"9" * 50, b"-1"),
    ),
    Target(
        "environments and command lines",
        plain(_process),
        (),
        (
            b"WANDB_RUN_ID=abc\0SLURM_JOB_ID=7\0HOSTNAME=n1\0SECRET=x\0",
            b"python3\0-u\0-W\0ignore\0train.py\0--lr\x001\0",
            b"python3\0-m\0torch.distributed.run\0x.py\0",
        ),
        (b"\0", b"=", b"-", b"-m\0", b"-c\0", b"-W", b"/", b"python3", b"\xff", b"RUN_ID", b"none", b"--"),
    ),
    Target(
        "worker frames",
        _frames,
        # Exceptions after which driver.client replaces the worker.
        (OSError, EOFError, ValueError, TypeError),
        (_frame(_READ), _frame({"id": 1, "op": "open"}) * 2),
        (b"\0\0\0\x02{}", b"\xff\xff\xff\xff", b"[" * 2000, b'"index":0', b'"values":', b'"static":', b"null", b"-1"),
        (_READ,),
        _frame,
    ),
)
