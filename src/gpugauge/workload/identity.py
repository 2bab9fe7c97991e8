"""What is known about the work that a process belongs to, as label values that are safe to show."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from gpugauge.text import printable

# Long enough for a pod's namespace and name as people give them; one hostile name must not fill a scrape.
MAX_LABEL_BYTES = 128


@dataclass(frozen=True, slots=True)
class Workload:
    """The work that a process belongs to or a device is given to; what is not known is empty."""

    kind: str = ""  # pod, slurm, container, systemd or user
    namespace: str = ""
    pod: str = ""
    container: str = ""  # its name in the pod; the first 12 digits of the id outside Kubernetes
    job_id: str = ""  # the id that the manager gave: Slurm job, pod UID or systemd unit
    user: str = ""
    command: str = ""  # without arguments
    run_id: str = ""  # the experiment, such as "wandb:abc"

    def labels(self) -> tuple[str, ...]:
        """Return the values in the order of LABELS."""
        values: tuple[str, ...] = _VALUES(self)
        return values


# Names that no service discovery overwrites.
LABELS = tuple(f"workload_{name}" for name in Workload.__slots__)
_VALUES = attrgetter(*Workload.__slots__)


def device_names(
    uuid: str, index: int | None = None, minor: int | None = None, gpu_instance: int | None = None
) -> tuple[str, ...]:
    """Return the names under which an orchestrator may know a device; index and minor number are the GPU's.

    The kubelet says uuid or minor number (`nvidia0`, `nvidia0/gi2`), job files index (`index:0`, `index:0.2`) or uuid.
    """
    names = [uuid]
    if minor is not None:
        names.append(f"nvidia{minor}" if gpu_instance is None else f"nvidia{minor}/gi{gpu_instance}")
    if index is not None:
        names.append(f"index:{index}" if gpu_instance is None else f"index:{index}.{gpu_instance}")
    return tuple(names)


def clean(text: str | bytes) -> str:
    """Make a label value of whatever it is: valid, printable, on one line, at most MAX_LABEL_BYTES long.

    Control, escape, direction and invalid characters become question marks.
    """
    if isinstance(text, bytes):
        text = text[: 4 * MAX_LABEL_BYTES].decode(errors="replace")
    text = text[: 4 * MAX_LABEL_BYTES]
    text = printable(text)
    return text.encode(errors="replace")[:MAX_LABEL_BYTES].decode(errors="ignore").strip()
