"""The topmost process of what a user started in a session, and the Ray node above a process, from its ancestors."""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from gpugauge.base.serving import launches
from gpugauge.workload.command import command_name
from gpugauge.workload.identity import clean
from gpugauge.workload.procfs import Procfs, process_hash

_MAX_ANCESTORS = 32
_MAX_PROGRAM = 40  # characters
_SHELLS = frozenset(
    {"sh", "bash", "zsh", "fish", "dash", "ksh", "mksh", "tcsh", "csh", "ash", "busybox", "nu", "xonsh"}
)
_SHELL_VALUES = frozenset({b"--rcfile", b"--init-file", b"-O", b"+O", b"-o", b"+o"})  # options with a value
# Programs that start the launches of a user, by the name that the kernel keeps (at most 15 characters).
_STARTERS = re.compile(
    r"systemd|\(sd-pam\)|init|sshd.*|dropbear|mosh-server|login|su|sudo|tmux.*|screen|SCREEN|zellij|dtach|abduco|"
    r"cron|crond|CRON|atd|slurmstepd|slurmd|pbs_mom|sbatchd|res|condor_starter|sge_execd|sge_shepherd|nomad|gitlab-runner|"
    r"Runner\.Worker|dockerd|containerd-shim.*|conmon|gnome-.*|konsole|xterm|kitty|alacritty|"
    r"xfce4-terminal|xrdp.*|code|code-server|node|electron|java|pycharm|idea|rsession|raylet|jupyterhub.*"
)
_NOTEBOOKS = frozenset({b"ipykernel_launcher", b"ipykernel", b"colab_kernel_launcher", b"colab_kernel_launcher.py"})
_RAY_SESSION = re.compile(rb"--session[-_](?:name=|dir=\S*/)(session_[\w.-]{1,80})")
# Programs that serve a screen, or all processes of a GPU.
_DISPLAY = re.compile(
    r"X|Xorg(?:\.bin|\.wrap)?|Xwayland|Xvfb|Xvnc|Xtigervnc|gnome-shell|gnome-session-\w+|mutter(?:-\w+)?|kwin(?:_x11|_wayland)?|"
    r"plasmashell|weston|sway|Hyprland|cinnamon|muffin|gamescope|wayfire|labwc|river|cosmic-comp|xfwm4|marco|compiz|"
    r"(?:gdm3?|sddm|lightdm)(?:-[a-z-]+)?|nvidia-cuda-mps-(?:server|control)|nvidia-persistenced"
)


class Launch(NamedTuple):
    """`name` is the program of the topmost process with unique digits, `raylet` the session of its Ray node."""

    name: str = ""
    raylet: str = ""


def is_display(command: str) -> bool:
    """Return whether a program serves a screen, or a GPU for other processes: no job."""
    return bool(_DISPLAY.fullmatch(command))


def launch_of(procfs: Procfs, pid: int, uid: int) -> Launch:
    """Return the launch of a process. It ends below an interactive shell, a program that starts sessions, a process of
    another user, and at the kernel of a notebook. Sessions alone do not separate them: torchrun gives each rank one.
    """
    top, raylet = pid, ""
    for _ in range(_MAX_ANCESTORS):
        stat = procfs.stat(top)
        if stat is None or stat.parent <= 1:
            break
        parent = procfs.stat(stat.parent)
        status = procfs.status(stat.parent)
        name = procfs.comm(stat.parent).decode(errors="replace")
        if name == "raylet":
            session = _RAY_SESSION.search(b" ".join(procfs.argv(stat.parent)))
            raylet = session[1].decode(errors="replace") if session else ""
        if parent is None or status is None or status.uid != uid or _STARTERS.fullmatch(name):
            break
        if parent.terminal and stat.group != parent.group and _is_interactive(name, procfs.argv(stat.parent)):
            break
        if stat.terminal and stat.session == top:  # a program that a terminal runs instead of a shell
            break
        if command_name(procfs.argv(top)) in _NOTEBOOKS:
            break
        top = stat.parent
    start = procfs.start_time(top)
    if start is None:
        return Launch(raylet=raylet)
    program = clean(_program(procfs.argv(top)) or procfs.comm(top))[:_MAX_PROGRAM]
    return Launch(f"{program}-{process_hash(procfs.boot_id, str(top), str(start))[:8]}", raylet)


def _is_interactive(name: str, argv: list[bytes]) -> bool:
    """Return whether a program is a shell that reads commands, not a script. It starts each in a group of its own."""
    if name.lstrip("-") not in _SHELLS:
        return False
    words = iter(word for word in argv[1:] if word)
    for word in words:
        if word in _SHELL_VALUES:
            next(words, None)
        elif not word.startswith((b"-", b"+")) or (not word.startswith(b"--") and b"c" in word):
            return False  # a script, or commands as an argument
    return True


def _program(argv: list[bytes]) -> bytes:
    """Return the short name of a program; that of the script for a shell with a script, and also for a launcher."""
    name = command_name(argv)
    if launches(name.decode(errors="replace")):
        scripts = (word.rpartition(b"/")[2] for word in argv[1:] if word.endswith(b".py") and not word.startswith(b"-"))
        return b" ".join((name, *islice(scripts, 1)))
    if name.decode(errors="replace") in _SHELLS and len(argv) > 1 and argv[1] and not argv[1].startswith((b"-", b"+")):
        return argv[1].rpartition(b"/")[2]
    return name
