"""The capabilities of this process, by prctl(2) and capset(2). They belong to a thread: called before others start."""

from __future__ import annotations

import ctypes

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 23, 24, 38, 47  # linux/prctl.h
_PR_CAP_AMBIENT_CLEAR_ALL = 4
# linux/capability.h: any of these bits suffices. CAP_DAC_OVERRIDE (1) does what CAP_DAC_READ_SEARCH (2) does.
_TO_READ_OTHERS = {"CAP_SYS_PTRACE": 1 << 19, "CAP_DAC_READ_SEARCH": 1 << 1 | 1 << 2}
_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h: two words for each set
_Words = ctypes.c_uint32 * 6  # effective, permitted, inheritable, for capabilities 0 to 31; then for 32 to 63


def clear_ambient() -> None:
    """Clear the ambient set, so that a program that this process starts gets no capabilities unless it is root."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def give_up() -> None:
    """Give up all capabilities for good. A filter of system calls may forbid it, see `permitted`."""
    number = 0
    while _prctl(_PR_CAPBSET_READ, number) >= 0:
        _prctl(_PR_CAPBSET_DROP, number)  # needs CAP_SETPCAP; without it the others are what counts
        number += 1
    clear_ambient()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _libc().capset((ctypes.c_uint32 * 2)(_VERSION_3, 0), _Words())  # process 0 is the caller


def permitted(pid: int) -> int:
    """Return the capabilities that a process has or can take, as bits; 0 if that is not known. Those that are only
    inheritable give nothing, because with no_new_privs no program gets capabilities from its file.
    """
    try:
        return _capabilities(str(pid), "CapPrm")
    except (OSError, IndexError):
        return 0


def reading_others() -> str:
    """Return the advice for a process that may not read others' environ. Raises OSError without procfs."""
    effective = _capabilities("self", "CapEff")
    lacking = [name for name, bits in _TO_READ_OTHERS.items() if not effective & bits]
    return f"give the daemon {' and '.join(lacking)}" if lacking else "a security module or a user namespace forbids it"


def _capabilities(process: str, kind: str) -> int:
    # Without pathlib, which would be 0.7 MB of the worker.
    with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - without pathlib
        return int(file.read().split(f"{kind}:")[1].split()[0], 16)


def _prctl(option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    result: int = _libc().prctl(option, *given)
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
