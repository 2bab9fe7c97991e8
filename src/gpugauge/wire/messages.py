"""The messages that the hook in a training process sends to the daemon, and the paths of the socket.

One message is one datagram on a Unix SOCK_SEQPACKET socket: UTF-8 JSON of at most 16 KiB. Within one major version both
sides ignore unknown keys and take missing keys as absent, so minor versions are compatible. gpugauge.wire.decoding
decodes. Runs on Python 3.9 with the standard library only: a training process loads this module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from gpugauge.base.text import printable

VERSION = (1, 4)  # major, minor
MAX_MESSAGE_BYTES = 16 * 1024
MAX_TEXT_CHARACTERS = 64
MAX_LONG_TEXT_CHARACTERS = 256  # of a fact in a snapshot: lists of architectures or of visible devices
MAX_DEVICES = 16
MAX_ENTRIES = 64  # facts, and kinds of parameters
MAX_GROUPS = 8  # process groups of a rank: those of most collectives
MAX_FRAMES = 24

# Histograms of durations have buckets by powers of two: bucket i counts durations of at most 2^(i + LOG2_FIRST) seconds
# and more than half of that. The first bucket also counts shorter durations, the last one longer durations.
LOG2_FIRST = -20
LOG2_BUCKETS = 34

SYSTEM_SOCKET = "/run/gpugauge/hook.sock"
SOCKET_VARIABLE = "GPUGAUGE_HOOK_SOCKET"
# The hook prints one line on stderr at the end of the training: always with 1, or on the file that `recap_on` states.
RECAP_VARIABLE = "GPUGAUGE_HOOK_RECAP"
RUN_VARIABLE = "GPUGAUGE_HOOK_RUN"  # what `gpugauge run --report` knows its processes by
ANSWERS_VARIABLE = "GPUGAUGE_HOOK_ANSWERS"  # 0: no thread that answers the daemon
COUNT_FLOPS_VARIABLE = "GPUGAUGE_HOOK_COUNT_FLOPS"  # 1: the hook counts the FLOPs of one step

END_REASONS = ("finished", "error", "out_of_memory", "interrupted")

# Environment variables that identify the job of a process: the user's word, and those of schedulers and launchers. The
# hook sends them as facts of hello, for a daemon that cannot see the process in /proc.
JOB_VARIABLES = (
    *("GPUGAUGE_JOB", "HOSTNAME", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES"),
    *("SLURM_JOB_ID", "SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID_PACK_GROUP_0"),
    *("TORCHELASTIC_RUN_ID", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "PET_NNODES", "JOB_COMPLETION_INDEX"),
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_hnp_uri"),
    *("PMIX_NAMESPACE", "K_MPI_JOB_ROLE"),
    *("LWS_LEADER_ADDRESS", "VC_TASK_INDEX", "VK_TASK_INDEX"),
    *("RAY_CLUSTER_NAME", "RAY_USAGE_STATS_KUBERAY_IN_USE", "RAY_JOB_ID"),
)

# A fact of hello: the start of the first process of the pid namespace. The number of the namespace is used again.
INIT_START = "init_start"


def recap_on(file: os.stat_result) -> str:
    """Return the value of RECAP_VARIABLE that asks for the line on this file alone."""
    return f"{file.st_dev}:{file.st_ino}"


# Sources of the step count: the hooks of optimizers, the batches before which parameters have changed (for compiled
# optimizers, which call no hooks), calls of gpugauge.hook.tick(), or the engine of DeepSpeed.
STEP_SOURCES = ("optimizer", "batches", "tick", "deepspeed")


# Sources of the model FLOPs, the most certain first: the program states those of a step, the hook has counted one step,
# or the weights of a dense transformer.
FLOP_SOURCES = ("stated", "counted", "parameters")


class WireError(ValueError):
    """An invalid message. The text states what was expected; `reason` is oversized, malformed or foreign."""

    def __init__(self, reason: str, expected: str) -> None:
        super().__init__(expected)
        self.reason = reason


@dataclass(frozen=True)
class Hello:
    """The first message of a connection: the identity of the process. `started` is Unix time; `facts` never change."""

    session: str
    sequence: int
    pid: int | None = None
    pid_namespace: int | None = None
    started: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """A sequence of events: number, total seconds, Unix time of the last event, histogram of durations."""

    count: int = 0
    seconds: float = 0.0
    last: float | None = None
    log2: tuple[int, ...] = ()


@dataclass(frozen=True)
class Parameters:
    """Parameters of one dtype on one device, both as torch names them: tensors, elements, bytes."""

    device: str
    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Device:
    """A device visible to the process by its own `index`, with bytes of torch's allocator once it is used."""

    index: int
    uuid: str | None = None
    allocated: int | None = None
    allocated_peak: int | None = None
    reserved: int | None = None
    active: int | None = None
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    name: str | None = None
    capability: str | None = None  # compute capability, as "9.0"
    device_allocs: int | None = None  # calls of the driver to allocate and to free memory, such as cudaMalloc
    device_frees: int | None = None
    step_allocated: int | None = None  # after the end of a step, read once a second
    limit: int | None = None  # what the allocator may take in all


@dataclass(frozen=True)
class Loader:
    """How the batches of the training were loaded, in its own thread or in loader workers.

    The seconds are those of `measured` batches, all but the first of each worker: CPU time of the loading thread, CPU
    time of other threads of the worker, waits for a CPU, for storage, and for anything else. `starts` are those of a
    set of workers, and `start_seconds` what they and their ends took. `slowest` is the speed of the slowest worker as
    a share of the median of the others.
    """

    batches: int
    measured: int | None = None
    cpu_seconds: float | None = None
    threads_seconds: float | None = None
    queued_seconds: float | None = None
    storage_seconds: float | None = None
    blocked_seconds: float | None = None
    epochs: int | None = None
    starts: int | None = None
    start_seconds: float | None = None
    slowest: float | None = None
    worker_bytes: int | None = None  # memory that one worker does not share
    process_cpu_seconds: float | None = None  # CPU time of the training process
    thread_queued_seconds: float | None = None  # time for which its training thread waited for a CPU


@dataclass(frozen=True)
class Group:
    """The collectives of a process group: the numbers of the last one that the rank has enqueued and of the last one
    that has completed. All ranks know the group by the same `name`; `kind` is the program's description of it.
    """

    name: str
    kind: str
    size: int
    enqueued: int
    completed: int


@dataclass(frozen=True)
class Frame:
    """A frame of a stack. `own` is 1 if it is of the program, not of torch or Python."""

    file: str
    line: int
    function: str
    own: int


@dataclass(frozen=True)
class Snap:
    """Cumulative counts since the session began; what is not known is None. `monotonic_ns` is the clock of the sender.

    Version 1.1 added the fields from `facts` to `compilations`. Version 1.2 added `waits`, by the phase that they
    served (before it, the waits are the seconds of `batches`), and the `samples` and `tokens` that the program reports;
    version 1.3 those in batches, `flops`, `loader`, and for each device the memory after a step and its limit; version
    1.4 the `groups`, and `answers`: 1 if the process answers questions, which are datagrams of any content.
    """

    session: str
    sequence: int
    monotonic_ns: int | None = None
    steps: Progress | None = None
    batches: Progress | None = None
    parameters: tuple[Parameters, ...] = ()
    devices: tuple[Device, ...] = ()
    errors: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    step_source: str | None = None
    optimizer_state: tuple[Parameters, ...] = ()
    exposed_wait_seconds: float | None = None
    local_work_seconds: float | None = None
    compilations: int | None = None
    waits: Mapping[str, float] | None = None
    samples: int | None = None
    tokens: int | None = None
    flops: Mapping[str, float] | None = None
    loader: Loader | None = None
    groups: tuple[Group, ...] = ()
    answers: int | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to a question, also while the training thread is blocked: its stack, the innermost frame last, the
    function of torch in which it waits for other ranks, None if it does not, and its process groups.
    """

    session: str
    sequence: int
    waits_in: str | None = None
    frames: tuple[Frame, ...] = ()
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Bye:
    """The last message of a session. `reason` is one of END_REASONS, or other: only the exit status decides."""

    session: str
    sequence: int
    reason: str


Message = Union[Hello, Snap, Answer, Bye]
KIND_NAMES = {Hello: "hello", Snap: "snap", Answer: "answer", Bye: "bye"}


def encode(message: Message) -> bytes:
    """Return the datagram of a message. Raises WireError when the datagram exceeds MAX_MESSAGE_BYTES."""
    body: dict[str, Any] = {"v": VERSION, "kind": KIND_NAMES[type(message)]}
    body.update(vars(message))
    data = json.dumps(body, default=vars, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError("oversized", f"a message has at most {MAX_MESSAGE_BYTES} bytes, this one {len(data)}")
    return data


def clean(text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """Return the first `limit` characters of `text` with `?` for each character that is not printable."""
    return printable(text[:limit])


def log2_bucket(nanoseconds: int) -> int:
    """Return the index of the bucket of a duration; see LOG2_FIRST."""
    ticks = ((nanoseconds << -LOG2_FIRST) - 1) // 1_000_000_000
    return min(ticks.bit_length(), LOG2_BUCKETS - 1) if ticks > 0 else 0


def server_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the default path of the daemon's socket: SYSTEM_SOCKET for root, else under XDG_RUNTIME_DIR."""
    if path := environ.get(SOCKET_VARIABLE):
        return path
    runtime = environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/gpugauge/hook.sock" if runtime and os.geteuid() != 0 else SYSTEM_SOCKET


def client_paths(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the sockets that a training process tries, in order: the system daemon before the user's own daemon."""
    if path := environ.get(SOCKET_VARIABLE):
        return (path,)
    runtime = environ.get("XDG_RUNTIME_DIR")
    return (SYSTEM_SOCKET, f"{runtime}/gpugauge/hook.sock") if runtime else (SYSTEM_SOCKET,)
