"""The workload of a process or device, as safe label values."""

from __future__ import annotations

from typing import NamedTuple

from gpugauge.base.text import printable

# Long enough for usual names of pods and namespaces. Hostile names must not make scrapes large.
MAX_LABEL_BYTES = 128


class Workload(NamedTuple):
    """The workload that a process belongs to or a device is assigned to; unknown fields are empty."""

    kind: str = ""  # pod, slurm, container, systemd or user
    namespace: str = ""
    pod: str = ""
    container: str = ""  # name in the pod; outside of Kubernetes the first 12 digits of the id
    job_id: str = ""  # the manager's id: Slurm job, pod UID or systemd unit
    user: str = ""
    command: str = ""  # without arguments
    run_id: str = ""  # experiment run, such as "wandb:abc"
    job_kind: str = ""  # one of job.KINDS; empty without a job, or while a name in it is awaited
    job: str = ""  # the name of the job; kind, name and namespace identify it
    job_source: str = ""  # one of job.SOURCES

    def job_labels(self) -> tuple[str, ...]:
        """Return the values in the order of JOB_LABELS."""
        return self.job_kind, self.job, self.namespace, self.job_source, self.pod


# Names that service discovery does not overwrite.
LABELS = tuple(f"workload_{name}" for name in Workload._fields)
# What a job is, and the pod of one of its processes.
JOB_LABELS = ("workload_job_kind", "workload_job", "workload_namespace", "workload_job_source", "workload_pod")


def device_names(
    uuid: str, minor: int | None = None, gpu_instance: int | None = None, bus_id: str | None = None
) -> tuple[str, ...]:
    """Return the names of a device in orchestrators: uuid, device file (`nvidia0`, `nvidia0/gi2`) and address."""
    names = [uuid]
    if minor is not None:
        names.append(f"nvidia{minor}" if gpu_instance is None else f"nvidia{minor}/gi{gpu_instance}")
    if bus_id:
        names.append(address_name(bus_id))
    return tuple(names)


def address_name(bus_id: str) -> str:
    """Return the name of a device by its PCI bus id, whose domain has four digits or eight."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"pci:{domain.lstrip('0').rjust(4, '0')}:{rest}"


def clean(text: str | bytes) -> str:
    """Return text as a label value: valid, printable, on one line, at most MAX_LABEL_BYTES long; others become `?`."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_LABEL_BYTES].decode(errors="replace")
    text = printable(text[: 4 * MAX_LABEL_BYTES])
    return text.encode(errors="replace")[:MAX_LABEL_BYTES].decode(errors="ignore").strip()
