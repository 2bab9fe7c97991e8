"""The device plugin: serves the devices on a socket of its own, and registers with each new kubelet; the messages of
the kubelet's API, v1beta1, and the files of the hook on the node, which a pod sees at `/opt/gpugauge-hook`.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpugauge.base.logline import Condition, fields
from gpugauge.base.protobuf import field, flag, messages
from gpugauge.hook import launch

CONTAINER_FOLDER = "/opt/gpugauge-hook"
_USER_BASE = "user"
# The interpreters that find the hook by PYTHONUSERBASE; `t` is the build without the global lock.
_INTERPRETERS = tuple(f"python3.{minor}{build}" for minor in range(6, 30) for build in ("", "t"))
_UNFINISHED = ".new-"


def environment() -> dict[str, str]:
    """Return the variables that load the hook in a container. PYTHONPATH stays that of the image or of the pod."""
    return {"PYTHONUSERBASE": f"{CONTAINER_FOLDER}/{_USER_BASE}"}


def install(folder: Path) -> Path:
    """Copy the hook into a folder below `folder` that is named by its content, and return it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        made.chmod(0o755)
        launch.export(made)
        _link(made)
        target = folder / _digest(made)
        if not target.is_dir():
            made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _link(made: Path) -> None:
    """Make the hook the `usercustomize` of each interpreter's user base."""
    for interpreter in _INTERPRETERS:
        packages = made / _USER_BASE / "lib" / interpreter / "site-packages"
        packages.mkdir(parents=True)
        source = os.path.relpath(made / "gpugauge" / "hook" / "userbase" / "usercustomize.py", packages)
        (packages / "usercustomize.py").symlink_to(source)


def _digest(made: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(made.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        content.update(f"{path.relative_to(made)}\0{len(data)}\0".encode() + data)
    return content.hexdigest()[:16]


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
        self._devices = device_list(f"hook-{number}" for number in range(devices))
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
        request = register_request(self._socket.name, RESOURCE)
        try:
            with self._grpc.insecure_channel(f"unix:{quote(str(self._kubelet))}", options=options) as channel:
                channel.unary_unary(REGISTER)(request, timeout=_REGISTER_TIMEOUT_SECONDS)
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
            "GetDevicePluginOptions": self._grpc.unary_unary_rpc_method_handler(lambda *_: EMPTY),
            "ListAndWatch": self._grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": self._grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(SERVICE, handlers),))
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
            return allocate_response(request, self._container)
        except ValueError as error:
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, f"no AllocateRequest of {VERSION}: {error}")
            raise


def _identity(path: Path) -> Identity | None:
    """Return what differs between a socket and the next one at the same path, None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
