"""What runtimes write about containers: the pod of a sidecar, and the Compose service of a Docker container.

Kubernetes writes one file for each field of a downward API volume: `namespace`, `name`, `uid`, and `labels` with a line
`key="value"` for each label (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/). Docker keeps a JSON
file for each container, which root can read.
"""

from __future__ import annotations

import json
from pathlib import Path

from gpugauge.workload.controllers import Pod
from gpugauge.workload.identity import clean

_MAX_BYTES = 65536
_MAX_DOCKER_BYTES = 1 << 20
_COMPOSE = ("com.docker.compose.project", "com.docker.compose.service")


class PodInfoError(Exception):
    """The folder does not describe a pod; the message states which file is missing, and what to do."""


def read_pod(folder: Path) -> Pod:
    """Return the pod that a folder describes. Raises PodInfoError."""
    try:
        namespace, name = (clean(_read(folder / field)) for field in ("namespace", "name"))
    except OSError as error:
        raise PodInfoError(
            f"{error.filename}: {error.strerror}: kubernetes.pod_info is the folder of a downwardAPI volume with the "
            "files namespace, name, uid and labels"
        ) from error
    if not namespace or not name:
        raise PodInfoError(f"{folder}: namespace and name of the pod must not be empty")
    return Pod(namespace, name, _optional(folder / "uid").strip(), _labels(_optional(folder / "labels")))


def compose_service(containers: Path, container_id: str) -> str:
    """Return `project/service` of a Docker container; empty if Compose did not start it, or if that is not known."""
    try:
        text = _read(containers / container_id / "config.v2.json", _MAX_DOCKER_BYTES)
        labels = json.loads(text)["Config"]["Labels"]
        names = [labels[label] for label in _COMPOSE]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return "/".join(map(clean, names)) if all(isinstance(name, str) and name for name in names) else ""


def _labels(text: str) -> dict[str, str]:
    """Return the labels; a line that is not `key="value"` is ignored."""
    found = {}
    for line in text.splitlines():
        key, equals, quoted = line.partition("=")
        try:
            value = json.loads(quoted) if equals else ""
        except ValueError:
            continue
        if isinstance(value, str) and value:
            found[key] = clean(value)
    return found


def _optional(path: Path) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: Path, limit: int = _MAX_BYTES) -> str:
    with path.open("rb") as file:
        return file.read(limit).decode(errors="replace")
