"""The kubelet's side of the device plugin API: a real gRPC server, and its own reading of the messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.workload.kubelet import field

Fields = dict[int, list[Any]]


def decode(data: bytes) -> Fields:
    """Return the fields of a message: numbers and bytes."""
    found: Fields = {}
    rest = iter(data)

    def varint() -> int:
        value, shift = 0, 0
        for byte in rest:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return value

    for first in rest:
        assert first < 128
        number, kind = first >> 3, first & 7
        assert kind in {0, 2}
        found.setdefault(number, []).append(varint() if kind == 0 else bytes(next(rest) for _ in range(varint())))
    return found


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Return the first true result of the condition; fail if there is none in time."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)
    return result


class Kubelet:
    """A kubelet with the folder of its sockets. `devices` are those of each resource it watches, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.devices: dict[str, dict[str, str]] = {}
        self.registered: list[tuple[str, str, str]] = []  # version, endpoint, resource
        self.refuse = 0  # registrations that are refused next
        self._grpc = import_module("grpc")
        self._server: Any = None
        self._channels: list[Any] = []

    def start(self) -> None:
        """Start as the kubelet does: remove what is in the folder, then listen."""
        for path in self.folder.iterdir():
            path.unlink()
        self._server = self._grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
        handler = self._grpc.unary_unary_rpc_method_handler(self._register)
        services = self._grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self._server.add_generic_rpc_handlers((services,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop(None).wait(5)
        self.drop()

    def drop(self) -> None:
        """End all connections to plugins."""
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def allocate(self, containers: int) -> list[tuple[dict[str, str], list[tuple[str, str, bool]]]]:
        """Return environment and mounts (path in the container, path on the node, read-only) of each container."""
        request = b"".join(field(1, field(1, f"hook-{number}")) for number in range(containers))
        return [_container(each) for each in decode(self.call("Allocate", request)).get(1, [])]

    def call(self, method: str, request: bytes) -> bytes:
        with self._dial(self.registered[-1][1]) as channel:
            reply: bytes = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=10)
            return reply

    def _dial(self, endpoint: str) -> Any:
        options = (("grpc.use_local_subchannel_pool", 1),)
        return self._grpc.insecure_channel(f"unix:{self.folder / endpoint}", options=options)

    def _register(self, request: bytes, context: Any) -> bytes:
        if self.refuse:
            self.refuse -= 1
            context.abort(self._grpc.StatusCode.UNKNOWN, "requested API version is not supported")
        message = decode(request)
        version, endpoint, resource = (message[number][0].decode() for number in (1, 2, 3))
        self.registered.append((version, endpoint, resource))
        channel = self._dial(endpoint)
        self._channels.append(channel)  # before the thread, which may start late: drop() must find it
        if self._server is None:
            self.drop()
        threading.Thread(target=self._watch, args=(channel, resource), daemon=True).start()
        return b""

    def _watch(self, channel: Any, resource: str) -> None:
        try:
            options = decode(channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")(b"", timeout=10))
            assert options == {}
            replies: Iterator[bytes] = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            for reply in replies:
                found = [decode(device) for device in decode(reply)[1]]
                self.devices[resource] = {each[1][0].decode(): each[2][0].decode() for each in found}
        except (self._grpc.RpcError, ValueError):  # ValueError: the channel was closed
            pass
        finally:
            self.devices.pop(resource, None)


def _container(data: bytes) -> tuple[dict[str, str], list[tuple[str, str, bool]]]:
    message = decode(data)
    assert message.keys() <= {1, 2}
    variables = [decode(each) for each in message.get(1, [])]
    mounts = [decode(each) for each in message.get(2, [])]
    return (
        {each[1][0].decode(): each[2][0].decode() for each in variables},
        [(each[1][0].decode(), each[2][0].decode(), bool(each.get(3, [0])[0])) for each in mounts],
    )
