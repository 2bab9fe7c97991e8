"""The kubelet's pod-resources service: a real gRPC server and its messages."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

# Pod → container → resource → devices.
Pods = Mapping[tuple[str, str], Mapping[str, Mapping[str, Iterable[str]]]]


def field(number: int, content: str | bytes) -> bytes:
    """Return a length-delimited field."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def listing(pods: Pods) -> bytes:
    """Return a ListPodResourcesResponse."""
    reply = b""
    for (namespace, name), containers in pods.items():
        pod = field(1, name) + field(2, namespace)
        for container, resources in containers.items():
            message = field(1, container)
            for resource, devices in resources.items():
                ids = b"".join(field(2, device) for device in devices)
                topology = field(3, field(1, varint(1 << 3) + varint(0)))
                message += field(2, field(1, resource) + ids + topology)
            cpus = varint(3 << 3) + varint(7)
            pod += field(3, message + cpus)
        reply += field(1, pod)
    return reply


class Service:
    """The next behaviour of the server: reply with `reply`, or hang until `released`."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.calls = 0
        self.hangs = False
        self.released = threading.Event()

    def list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        self.calls += 1
        if self.hangs:
            self.released.wait(20)
        return self.reply


@contextmanager
def serving(socket: Path, service: Service) -> Iterator[Service]:
    """Serve on a Unix socket, which is removed at the end as by a kubelet."""
    grpc = import_module("grpc")
    handler = grpc.unary_unary_rpc_method_handler(service.list)
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield service
        finally:
            service.released.set()
            server.stop(0).wait()
