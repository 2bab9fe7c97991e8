"""The device plugin: serves the devices on a socket of its own, and registers with each new kubelet."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpugauge.base.logline import Condition, fields
from gpugauge.deviceplugin import messages

log = logging.getLogger(__name__)

RESOURCE = "gpugauge.dev/hook"
SOCKET, KUBELET_SOCKET = "gpugauge.sock", "kubelet.sock"
_POLL_SECONDS = 1.0
_REGISTER_TIMEOUT_SECONDS = 5.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0  # between two failed registrations
# A kubelet that has registered the plugin watches its devices all the time. If it does not, it has lost the plugin.
_UNWATCHED_SECONDS = 15.0
_MAX_CALLS = 16  # at the same time; the kubelet keeps one open

Identity = tuple[int, int, int]


class PluginError(Exception):
    """The plugin cannot serve; the message contains the advice."""


class DevicePlugin:
    """Offers `devices` devices of RESOURCE in the kubelet's folder. Raises PluginError without gRPC."""

    def __init__(
        self, folder: Path, container: bytes, devices: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # keeps the C++ core from writing to standard error
        try:
            self._grpc = import_module("grpc")
        except ImportError as error:
            raise PluginError("the device plugin needs the package grpcio") from error
        self._socket, self._kubelet = folder / SOCKET, folder / KUBELET_SOCKET
        self._container, self._clock = container, clock
        self._devices = messages.device_list(f"hook-{number}" for number in range(devices))
        self._server: Any = None
        self._registered: tuple[Identity, Identity] | None = None  # the kubelet's socket and ours, at the registration
        self._pause, self._next_try = 0.0, 0.0
        self._trouble = Condition(log)
        self._lock = threading.Lock()
        self._watchers, self._unwatched_since = 0, 0.0

    def run(self, stop: threading.Event, poll_seconds: float = _POLL_SECONDS) -> None:
        """Serve until `stop` is set."""
        try:
            while not stop.is_set():
                self.turn()
                stop.wait(poll_seconds)
        finally:
            self._end()

    def turn(self) -> None:
        """Register if this kubelet has not registered the plugin yet, or has lost it."""
        now, kubelet = self._clock(), _identity(self._kubelet)
        if kubelet is None:
            self._trouble.failing(
                "the kubelet has no socket, pods cannot ask for the hook: is this the kubelet's device-plugins folder?",
                path=self._kubelet,
            )
            return
        with self._lock:
            lost = not self._watchers and now - self._unwatched_since > _UNWATCHED_SECONDS
        if self._registered == (kubelet, _identity(self._socket)) and not lost:
            return
        if now < self._next_try:
            return
        try:
            self._register(kubelet)
        except PluginError as error:
            self._trouble.failing(f"{error}, pods cannot ask for the hook", path=self._kubelet)
            self._registered = None
            self._pause = min(max(_MIN_PAUSE_SECONDS, 2 * self._pause), _MAX_PAUSE_SECONDS)
        else:
            self._trouble.recovered("the kubelet answers again")
            log.info("registered with the kubelet", extra=fields(resource=RESOURCE))
            self._pause = 0.0
        self._next_try = now + self._pause

    def _register(self, kubelet: Identity) -> None:
        """Serve on a new socket, and register it. Raises PluginError."""
        self._end()
        try:
            self._serve()
            own = _identity(self._socket)
        except (OSError, RuntimeError) as error:
            raise PluginError(f"cannot listen on {self._socket}: {error}") from None
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        request = messages.register_request(self._socket.name, RESOURCE)
        try:
            with self._grpc.insecure_channel(f"unix:{quote(str(self._kubelet))}", options=options) as channel:
                channel.unary_unary(messages.REGISTER)(request, timeout=_REGISTER_TIMEOUT_SECONDS)
        except self._grpc.RpcError as error:
            code = error.code().name.lower().replace("_", " ")
            raise PluginError(f"the kubelet does not register the plugin ({code}: {error.details()})") from None
        if own is not None:
            self._registered = kubelet, own

    def _serve(self) -> None:
        """Open the socket. Raises OSError or RuntimeError."""
        self._socket.unlink(missing_ok=True)
        with self._lock:
            self._unwatched_since = self._clock()
        executor = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="device-plugin")
        options = (("grpc.so_reuseport", 0),)
        server = self._grpc.server(executor, options=options)
        handlers = {
            "GetDevicePluginOptions": self._grpc.unary_unary_rpc_method_handler(lambda *_: messages.EMPTY),
            "ListAndWatch": self._grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": self._grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))
        server.add_insecure_port(f"unix:{self._socket}")
        server.start()
        self._server = server

    def _end(self) -> None:
        """Close the socket; a socket that the kubelet or another process has put in its place stays."""
        server, self._server = self._server, None
        own = self._registered and self._registered[1]
        if server is not None:
            server.stop(grace=None).wait(5)
        if own is not None and _identity(self._socket) == own:
            self._socket.unlink(missing_ok=True)
        self._registered = None

    def _list_and_watch(self, _: bytes, context: Any) -> Iterator[bytes]:
        """Send the devices, which never change, and hold the call open until the kubelet ends it."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return
        with self._lock:
            self._watchers += 1
        try:
            yield self._devices
            ended.wait()
        finally:
            with self._lock:
                self._watchers -= 1
                self._unwatched_since = self._clock()

    def _allocate(self, request: bytes, context: Any) -> bytes:
        try:
            return messages.allocate_response(request, self._container)
        except ValueError as error:
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, f"no AllocateRequest of {messages.VERSION}: {error}")
            raise


def _identity(path: Path) -> Identity | None:
    """Return what differs between a socket and the next one at the same path, None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
