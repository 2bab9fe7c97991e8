"""The messages of the kubelet's device plugin API, v1beta1, that the plugin sends and reads.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpugauge.base.protobuf import field, flag, messages

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
SERVICE = f"{VERSION}.DevicePlugin"
EMPTY = b""
"""`Empty`, and `DevicePluginOptions` without an option: the kubelet calls neither PreStartContainer nor
GetPreferredAllocation."""


def register_request(endpoint: str, resource: str) -> bytes:
    """Return a RegisterRequest; `endpoint` is the name of the plugin's socket."""
    return field(1, VERSION) + field(2, endpoint) + field(3, resource) + field(4, EMPTY)


def device_list(names: Iterable[str]) -> bytes:
    """Return a ListAndWatchResponse with healthy devices."""
    return b"".join(field(1, field(1, name) + field(2, "Healthy")) for name in names)


def container_response(environment: Mapping[str, str], mounts: Mapping[str, str]) -> bytes:
    """Return a ContainerAllocateResponse; `mounts` are read-only folders of the node by path in the container."""
    variables = b"".join(field(1, field(1, name) + field(2, value)) for name, value in environment.items())
    return variables + b"".join(
        field(2, field(1, inside) + field(2, host) + flag(3)) for inside, host in mounts.items()
    )


def allocate_response(request: bytes, container: bytes) -> bytes:
    """Return the AllocateResponse that gives `container` to each container of an AllocateRequest. Raises ValueError."""
    return b"".join(field(1, container) for _ in messages(request, 1))
