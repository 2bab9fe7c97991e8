"""The job of a process: what one person submitted, of any size. docs/attribution.md has a row for each source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from gpugauge.base.text import printable
from gpugauge.workload import environ
from gpugauge.workload.controllers import CONTROLLERS, Pod, controller, number, spans_hosts

# Every value of `workload_job_kind`, and of `workload_job_source`.
KINDS = (
    *("declared", "slurm", *CONTROLLERS, "pod"),
    *("distributed", "mpi", "ray", "compose", "container", "unit", "launch"),
)
SOURCES = (
    *("declared", "slurm", "metadata", "downward_api", "environment", "pod_name", "pod"),
    *("rendezvous", "cgroup", "ancestry", "hook", "unknown"),
)
# By kind, what people call a job: the words before its name, and how the name is rewritten, by an expression of Python
# and of RE2. Host and user in a name only make it unique. Other kinds are their own words.
UNIQUE = "^[^/]*/"
WORDS: Mapping[str, tuple[str, str, str]] = {
    "declared": ("job ", UNIQUE, ""),
    "slurm": ("Slurm job ", UNIQUE, ""),
    "pod": ("pod ", "^([0-9a-f]+)(-[0-9a-f]+){4}$", "uid $1"),  # its name is not known
    "distributed": ("distributed job ", UNIQUE, ""),
    "launch": ("", "^[^/]*/[^/]*/(.+)-[0-9a-f]+$", "$1"),
}
MAX_NAME_BYTES = 128

# Services that start the programs of many users: the unit is not what one of them submitted.
_SHARED_UNITS = re.compile(
    r"(?:(?:ssh|sshd|cron|crond|atd|slurmd|slurmstepd|pbs|pbs_jobs|pbs_mom|torque-mom|lsf|lsfd|condor|sge_execd|gridengine-exec|"
    r"docker|containerd|kubelet|podman|nomad|jupyterhub|getty|rserver|rstudio-server|code-server|gitlab-runner)(?:@[^/]*)?"
    r"|jupyter-[^/]+|actions\.runner\.[^/]+)\.service"
)
_CLAIMS = ("declared", "environment", "rendezvous")  # sources that are the environment
_LOOPBACK = re.compile(r"(?:localhost(?:\..*)?|ip6-localhost|127(?:\.\d+){0,3}|::1|0(?:\.0){0,3}|::)?")
_HET_LEADERS = ("SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID_PACK_GROUP_0")  # the second one before Slurm 20.02
# PRRTE, the launcher of Open MPI 5: `prterun-<host>-<pid>@<number>`.
_PRRTE = re.compile(r"prterun-(.+-\d+@\d+)")
# The launcher of Open MPI up to 4: `<job family>.0;tcp://<address>[,<address>…]:<port>`.
_ORTE = re.compile(r"(\d+)\.\d+;tcp6?://\[?([^,;\]]+?)\]?(?:,[^;]*)?:(\d+)(?:;.*)?")


class Job(NamedTuple):
    """A job; kind, name and namespace identify it. `source` states how it was found. All are empty without a job."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    source: str = ""


class JobFacts(NamedTuple):
    """The facts about one process. Unknown ones are empty or None."""

    environment: Mapping[str, str] = {}  # those of environ.VARIABLES
    claimed: bool = False  # the environment was sent by the hook, since /proc does not show it
    hidden: bool = False  # the environment is not known
    incomplete: bool = False  # a source that may know more has not answered
    user: str = ""
    host: str = ""  # a name that no other machine has
    slurm_job: str = ""  # the number or the SLUID in the cgroup
    pod_uid: str = ""
    pod: Pod | None = None
    container_id: str = ""
    rootless: bool = False  # a user chose the id of the container, whose cgroup is below the user's slice
    compose: str = ""  # project/service
    host_network: bool = True  # the process uses the network of the host
    unit: str = ""
    raylet: str = ""  # session of the Ray node that started the process
    launch: str = ""  # the topmost process of the user's launch, with a part that is unique on the host
    display: bool = False  # it serves a screen


def resolve(facts: JobFacts) -> Job:
    """Return the job of a process by the first source that knows, an empty one for a display server of the host. A
    process of a pod is resolved when the pod is known, or never will be.
    """
    in_pod = bool(facts.pod_uid or facts.pod)
    if facts.display and not in_pod and not facts.slurm_job:
        return Job()
    sources = (_declared, _slurm, *((_of_pod,) if in_pod else (_mpi, _distributed, _ray, _of_host)))
    found = next((job for source in sources if (job := source(facts)) is not None), Job())
    return Job(
        found.kind,
        bounded(printable(found.name)),
        facts.pod.namespace if facts.pod and found.kind else "",
        "hook" if facts.claimed and found.source in _CLAIMS else found.source,
    )


def job_words(kind: str, name: str) -> str:
    """Return what people call a job of a kind."""
    return "".join(_parts(kind, name))


def _parts(kind: str, name: str) -> tuple[str, str]:
    words, pattern, shown = WORDS.get(kind, (f"{kind} ", UNIQUE, ""))
    return words, re.sub(pattern, shown.replace("$", "\\"), name)


def called(kind: str, namespace: str, name: str) -> set[str]:
    """Return all names of a job that a command accepts: of alerts, views and labels, also with kind and namespace."""
    words, short = _parts(kind, name)
    known = {name, short, short.rpartition(" ")[2], *(name.split("/", n)[-1] for n in (1, 2))}
    known |= {f"{namespace}/{each}" for each in known} if namespace else set()
    known |= {f"{before}{each}" for each in known for before in (words, f"{kind}:")}
    return known | ({f"{words}{short} in {namespace}"} if namespace else set())


def numbered(facts: JobFacts, number: str, *, proven: bool) -> JobFacts:
    """Return the facts with the number of the job that has a SLUID; one not `proven` is as of the environment."""
    if proven:
        return facts._replace(slurm_job=number)
    return facts._replace(environment={**facts.environment, "SLURM_JOB_ID": number})


def bounded(name: str) -> str:
    """Return a name of at most MAX_NAME_BYTES; names with the same beginning stay different."""
    if len(name.encode(errors="replace")) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return name.encode(errors="replace")[: MAX_NAME_BYTES - 9].decode(errors="ignore") + "~" + digest


def _leader(environment: Mapping[str, str]) -> str:
    """Return the id of the heterogeneous job: that of its leader. A job submitted from within does not inherit it."""
    job = environ.slurm_job(environment)
    return job if job in {environment.get(name) for name in _HET_LEADERS} else ""


def _declared(f: JobFacts) -> Job | None:
    name = f.environment.get("GPUGAUGE_JOB", "").strip() if f.pod or not f.pod_uid else ""  # without its namespace
    return Job("declared", f"{f.user}/{name}", source="declared") if name else None


def _slurm(f: JobFacts) -> Job | None:
    job_id = environ.slurm_job(f.environment, f.slurm_job, in_pod=bool(f.pod_uid or f.pod))
    if not job_id:
        return None
    # What only the environment says may be the id of another user's job. The number of an array and of its task are not
    # used: a job that is submitted from within the task inherits them.
    claimed = _leader(f.environment) or ("" if f.slurm_job == job_id else job_id)
    return Job("slurm", f"{f.user}/{claimed}" if claimed else job_id, source="slurm" if f.slurm_job else "environment")


def _of_pod(f: JobFacts) -> Job:
    if f.pod is None:
        # Without the namespace, every other name could be that of another namespace's job.
        return Job("pod", f.pod_uid, source="unknown")
    found = controller(f.pod, f.environment)
    if found:
        kind, name, source = found
        return Job(kind, name, source=source)
    stated = f.pod.labels or f.pod.source == "metadata" or not f.incomplete
    return _distributed(f) or Job("pod", f.pod.name, source="pod" if stated else "unknown")


def _distributed(f: JobFacts) -> Job | None:
    """Return the job of the ranks that meet at one address: torchrun, accelerate, DeepSpeed, Lightning, or by hand."""
    address = f.environment.get("MASTER_ADDR", "").strip().lower().rstrip(".")
    port = f.environment.get("MASTER_PORT", "").strip()
    if _LOOPBACK.fullmatch(address) or not environ.is_number(port) or not spans_hosts(f.environment):
        return None
    run = f.environment.get("TORCHELASTIC_RUN_ID", "").strip()
    name = f"{run}@{address}:{port}" if run and run != "none" else f"{address}:{port}"
    if f.pod is None:
        # Two users may use an address one after the other. Names of users are equal on hosts whose numbers differ.
        name = f"{f.user}/{name}"
    # Addresses of pods are of the cluster, those of another container with its own network of this host only.
    local = f.pod is None and not f.host_network
    return Job("distributed", f"{f.host}/{name}" if local else name, source="rendezvous")


def _mpi(f: JobFacts) -> Job | None:
    if (number(f.environment, "OMPI_COMM_WORLD_SIZE") or 1) < 2:
        return None
    prrte = _PRRTE.fullmatch(f.environment.get("PMIX_NAMESPACE", ""))
    orte = _ORTE.fullmatch(f.environment.get("OMPI_MCA_orte_hnp_uri", "").strip('"'))
    name = prrte[1] if prrte else f"{orte[1]}@{orte[2]}:{orte[3]}" if orte else ""
    return Job("mpi", f"{f.user}/{name}", source="rendezvous") if name else None


def _ray(f: JobFacts) -> Job | None:
    if not f.raylet:
        return None
    job = f.environment.get("RAY_JOB_ID", "")
    name = f"{f.raylet}/{job}" if job.isalnum() else f.raylet
    return Job("ray", f"{f.user}/{name}", source="ancestry")  # every user can start a program with the name of a node


def _of_host(f: JobFacts) -> Job | None:
    """Return a job of one host, with the host in its name."""
    places: tuple[tuple[str, str, str], ...] = (
        ("compose", f.compose, "cgroup"),
        ("container", f.container_id[:12], "cgroup"),
        ("unit", "" if _SHARED_UNITS.fullmatch(f.unit) else f.unit, "cgroup"),
        ("launch", f.launch, "ancestry"),
    )
    for kind, name, source in places:
        if name:
            owner = f"{f.user}/" if kind in {"unit", "launch"} or f.rootless else ""
            return Job(kind, f"{f.host}/{owner}{name}", source=source)
    return None
