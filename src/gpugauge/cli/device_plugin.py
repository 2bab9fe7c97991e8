"""`gpugauge device-plugin`: the hook for pods of a Kubernetes node."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpugauge.cli.common import fail

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _folder(name: str, default: str, help: str) -> Callable[[_Command], _Command]:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option(name, type=kind, default=default, show_default=True, help=help)


@click.command("device-plugin")
@_folder("--kubelet-folder", "/var/lib/kubelet/device-plugins", "Folder with the kubelet's sockets.")
@_folder("--hook-folder", "/var/lib/gpugauge/hook", "Folder for the hook's files, with the same path on the node.")
@_folder("--socket-folder", "/run/gpugauge", "Folder on the node with the daemon's socket.")
@click.option(
    "--devices",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Largest number of containers of the node that have the hook at the same time.",
)
def command(kubelet_folder: Path, hook_folder: Path, socket_folder: Path, devices: int) -> None:
    """Give the hook to pods that ask for it.

    Registers the resource gpugauge.dev/hook with the kubelet. A container with one of it gets the files of the hook,
    the daemon's socket and the variable that loads the hook. Runs until it is stopped.
    """
    from gpugauge.daemon import logs
    from gpugauge.deviceplugin import files, messages, plugin

    logs.setup()
    os.umask(0o022)  # every user of a container reads the files
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        folder = files.install(hook_folder)
        mounts = {files.CONTAINER_FOLDER: str(folder), "/run/gpugauge": str(socket_folder)}
        container = messages.container_response(files.environment(), mounts)
        plugin.DevicePlugin(kubelet_folder, container, devices).run(stop)
    except (OSError, plugin.PluginError) as error:
        fail(1, error)
