"""The messages of the kubelet's device plugin API, v1beta1, that the plugin sends and reads.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpugauge.base.protobuf import field, flag, messages

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
SERVICE = f"{VERSION}.DevicePlugin"
EMPTY = b""
"""`Empty`, and `DevicePluginOptions` without an option: the kubelet calls neither PreStartContainer nor
GetPreferredAllocation."""


class Mount(NamedTuple):
    """A folder of the node, which the container gets read-only."""

    container_path: str
    host_path: str


def register_request(endpoint: str, resource: str) -> bytes:
    """Return a RegisterRequest; `endpoint` is the name of the plugin's socket."""
    return field(1, VERSION) + field(2, endpoint) + field(3, resource) + field(4, EMPTY)


def device_list(names: Iterable[str]) -> bytes:
    """Return a ListAndWatchResponse with healthy devices."""
    return b"".join(field(1, field(1, name) + field(2, "Healthy")) for name in names)


def container_response(environment: Mapping[str, str], mounts: Iterable[Mount]) -> bytes:
    """Return a ContainerAllocateResponse."""
    variables = b"".join(field(1, field(1, name) + field(2, value)) for name, value in environment.items())
    return variables + b"".join(
        field(2, field(1, mount.container_path) + field(2, mount.host_path) + flag(3)) for mount in mounts
    )


def allocate_response(request: bytes, container: bytes) -> bytes:
    """Return the AllocateResponse that gives `container` to each container of an AllocateRequest. Raises ValueError."""
    return b"".join(field(1, container) for _ in messages(request, 1))
