"""What Kubernetes and runtimes write about containers: names of pods by those of their log files, which alone join them
to ids on a node; the files of a downward API volume for a sidecar; Docker's JSON files, with the Compose service.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpugauge.workload.controllers import Pod
from gpugauge.workload.identity import clean

_MAX_BYTES = 65536
_MAX_DOCKER_BYTES = 1 << 20
_COMPOSE = ("com.docker.compose.project", "com.docker.compose.service")
_ONE_OFF = "com.docker.compose.oneoff"
_MAX_LOG_FILES = 20000
# The kubelet writes `<pod>_<namespace>_<container>-<id>.log`, without an id if it is too long. Names have no `_`.
_CONTAINER = re.compile(r"(?P<pod>[^_]+)_(?P<namespace>[^_]+)_(?P<name>[^_]+)-(?P<id>[0-9a-f]{64})\.log")
_POD = re.compile(r"(?P<namespace>[^_]+)_(?P<pod>[^_]+)_(?P<id>[0-9a-f-]{32,36})(?P<name>)")


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
        alone = labels.get(_ONE_OFF) == "True"  # each `docker compose run` is a launch of its own
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return "/".join(map(clean, names)) if not alone and all(isinstance(n, str) and n for n in names) else ""


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


class Place(NamedTuple):
    """A pod, or one of its containers if its name is known."""

    namespace: str
    pod: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class PodNames:
    """Places by container id and by pod uid."""

    containers: dict[str, Place] = field(default_factory=dict)
    pods: dict[str, Place] = field(default_factory=dict)


def read_names(log: Path) -> PodNames:
    """Return the names in the folders `containers` and `pods` below `log`. Raises OSError if neither can be listed."""
    names, errors = PodNames(), []
    for folder, form, found in (("containers", _CONTAINER, names.containers), ("pods", _POD, names.pods)):
        try:
            with os.scandir(log / folder) as entries:
                listed = (form.fullmatch(entry.name) for entry in islice(entries, _MAX_LOG_FILES))
                for match in filter(None, listed):
                    found[match["id"]] = Place(*(clean(match[part]) for part in ("namespace", "pod", "name")))
        except OSError as error:  # noqa: PERF203  (two folders)
            errors.append(error)
    if len(errors) == 2:
        raise errors[1]
    return names
