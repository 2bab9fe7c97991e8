"""Containers by device, from the kubelet's pod-resources service (v1) on its Unix socket, by one call."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from gpugauge.base.protobuf import messages, text
from gpugauge.workload.identity import Workload, address_name, clean

_METHOD = "/v1.PodResourcesLister/List"
_MAX_REPLY_BYTES = 16 << 20
_MAX_DEVICES, _MAX_HOLDERS = 65536, 256  # in all, and of one device
# `GPU-uuid`, `MIG-uuid`, shared `GPU-uuid::3`, by HAMi `GPU-uuid-3`; on GKE `nvidia0`, `nvidia0/gi2`, shared
# `nvidia0/vgpu1`. AMD's plugin has PCI addresses.
_DEVICE = re.compile(
    r"((?:GPU|MIG)-[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})(?:(?:::|-)\d+)?"
    r"|((?:GPU|MIG)-[0-9A-Za-z/-]{1,80})(?:::\d+)?"
    r"|(nvidia\d{1,4}(?:/gi\d{1,4})?)(?:/vgpu\d+)?"
    r"|([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
)
# NVIDIA's driver for dynamic resource allocation names a whole GPU by its minor number.
_DRA_DRIVER, _DRA_DEVICE = "gpu.nvidia.com", re.compile(r"gpu-(\d{1,4})")


class KubeletError(Exception):
    """The kubelet does not respond, or its reply is invalid; the message contains the advice."""


class Allocations(NamedTuple):
    """The containers by name of the device; several for a shared device."""

    devices: Mapping[str, tuple[Workload, ...]]
    ignored: int  # devices with an unknown form of name, or above a limit


class Kubelet(NamedTuple):
    """Client of the kubelet. Each call opens a connection, so that it also works after a restart of the kubelet."""

    socket: Path
    timeout: float = 5.0
    resources: tuple[str, ...] = ("nvidia.com/",)

    def allocations(self) -> Allocations:
        """Return the allocations of all devices within the time-out. Raises KubeletError."""
        try:
            return decode(self._list(), self.resources)
        except ValueError as error:
            raise KubeletError("the reply of the kubelet is invalid, pod labels are missing") from error

    def _list(self) -> bytes:
        # Keeps the C++ core of gRPC from writing to standard error.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            grpc = import_module("grpc")  # an extra; loaded only if there is a kubelet
        except ImportError as error:
            raise KubeletError("pod labels need the package grpcio") from error
        options = (
            ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
            ("grpc.enable_http_proxy", 0),
            # The global pool keeps the back-off of a failed connection for a while after its channel is closed.
            ("grpc.use_local_subchannel_pool", 1),
        )
        try:
            with grpc.insecure_channel(f"unix:{quote(str(self.socket))}", options=options) as channel:
                reply: bytes = channel.unary_unary(_METHOD)(b"", timeout=self.timeout)
                return reply
        except grpc.RpcError as error:
            code = error.code().name.lower().replace("_", " ")
            raise KubeletError(f"the kubelet does not respond ({code}), pod labels are missing") from error


def decode(reply: bytes, resources: tuple[str, ...]) -> Allocations:
    """Decode a ListPodResourcesResponse; only resources with one of the prefixes are kept. Raises ValueError."""
    devices: dict[str, dict[Workload, None]] = {}
    count = ignored = 0
    for workload, name in _assignments(reply, resources):
        match = _DEVICE.fullmatch(name)
        count += 1
        known = next(filter(None, match.groups())) if match else ""
        holders = devices.setdefault(address_name(known) if match and match[4] else known, {}) if match else {}
        if match is None or count > _MAX_DEVICES or len(holders) >= _MAX_HOLDERS:
            ignored += 1
            continue
        holders[workload] = None
    return Allocations({name: tuple(holders) for name, holders in devices.items() if holders}, ignored)


def _assignments(reply: bytes, resources: tuple[str, ...]) -> Iterator[tuple[Workload, str]]:
    """Yield each container with the name of each of its devices."""
    for pod in messages(reply, 1):
        pod_name, namespace = text(pod, 1), text(pod, 2)
        for container in messages(pod, 3):
            holder = Workload("pod", clean(namespace), clean(pod_name), clean(text(container, 1)))
            for device in messages(container, 2):
                if text(device, 1).startswith(resources):
                    for name in messages(device, 2):
                        yield holder, name.decode()
            for claim in messages(container, 5):
                for resource in messages(claim, 4):
                    numbered = _DRA_DEVICE.fullmatch(text(resource, 4))
                    if text(resource, 2) == _DRA_DRIVER:
                        yield holder, f"nvidia{numbered[1]}" if numbered else text(resource, 4)
