"""`gpugauge device-plugin`: the hook for pods of a Kubernetes node."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import click

from gpugauge.cli.common import fail

_folder = partial(click.option, type=click.Path(path_type=Path, file_okay=False), show_default=True)


@click.command("device-plugin")
@_folder("--kubelet-folder", default="/var/lib/kubelet/device-plugins", help="Folder with the kubelet's sockets.")
@_folder(
    "--hook-folder",
    default="/var/lib/gpugauge/hook",
    help="Folder for the hook's files, with the same path on the node.",
)
@_folder("--socket-folder", default="/run/gpugauge", help="Folder on the node with the daemon's socket.")
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
    from gpugauge.deviceplugin import plugin

    logs.setup()
    os.umask(0o022)  # every user of a container reads the files
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        folder = plugin.install(hook_folder)
        mounts = {plugin.CONTAINER_FOLDER: str(folder), "/run/gpugauge": str(socket_folder)}
        container = plugin.container_response(plugin.environment(), mounts)
        plugin.DevicePlugin(kubelet_folder, container, devices).run(stop)
    except (OSError, plugin.PluginError) as error:
        fail(1, error)
