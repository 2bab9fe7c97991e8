"""Files of a proc file system and of a cgroup file system, written for one process at a time."""

from pathlib import Path

MAPS = "7f00-7f01 r-xp 00000000 08:01 42  /opt/venv/lib/python3.11/site-packages/torch/lib/{}\n"
CUDA = "".join(map(MAPS.format, ("libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10_cuda.so")))
CPU = "".join(map(MAPS.format, ("libtorch_python.so", "libtorch_cpu.so")))
ROCM = "".join(map(MAPS.format, ("libtorch_python.so", "libtorch_cpu.so", "libtorch_hip.so")))


def stat(pid: int, *, parent: int, state: str, cpu: int, reaped: int, faults: int, start: int) -> str:
    fields: list[object] = [0] * 52
    fields[0], fields[1], fields[2], fields[3] = pid, "(a (b) c)", state, parent
    fields[11], fields[13], fields[14], fields[15], fields[19], fields[21] = faults, cpu, 0, reaped, 4, start
    return " ".join(map(str, fields)) + "\n"


def write(
    root: Path,
    pid: int,
    *,
    parent: int = 1,
    state: str = "S",
    cpu: int = 0,
    main: int | None = None,
    reaped: int = 0,
    faults: int = 0,
    start: int = 1000,
    maps: str | None = "",
    command: tuple[str, ...] = ("python", "train.py"),
    environ: dict[str, str] | None = None,
    cgroup: str = "0::/job\n",
    devices: tuple[str, ...] = (),
    io: tuple[int, int] | None = None,
    cpus: str = "f",
    uid: int = 1000,
) -> Path:
    """Write or overwrite a process. CPU times are in clock ticks."""
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    (folder / f"task/{pid}").mkdir(parents=True, exist_ok=True)
    figures = {"parent": parent, "state": state, "reaped": reaped, "faults": faults, "start": start}
    (folder / "stat").write_text(stat(pid, cpu=cpu, **figures))  # type: ignore[arg-type]  # one dict for several
    if main is not None:
        (folder / f"task/{pid}/stat").write_text(stat(pid, cpu=main, **figures))  # type: ignore[arg-type]  # one dict for several
    (folder / "status").write_text(
        f"Name:\tpython\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"NSpid:\t{pid}\nCpus_allowed:\t{cpus}\n"
    )
    (folder / "comm").write_text("python\n")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))
    (folder / "environ").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in (environ or {}).items()))
    (folder / "cgroup").write_text(cgroup)
    if maps is not None:
        (folder / "maps").write_text(maps)
    if io is not None:
        (folder / "io").write_text(f"rchar: 9\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\ncancelled_write_bytes: 0\n")
    for number, target in enumerate(devices):
        link = folder / "fd" / str(number)
        if not link.is_symlink():
            link.symlink_to(target)
    return folder
