"""A double of NCCL's RAS, from src/ras/client_support.cc: its lines, its answers, and those who answer badly."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
RUNNING = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
OLD, NEW = (2, 28, 9), (2, 29, 2)


def rank(number: int, pid: int, count: int = 0, host: str = "127.0.0.1", **status: Any) -> str:
    """Return a rank that answers."""
    counts = ",\n".join(f'"{kind}": {count if kind == "AllReduce" else 0}' for kind in KINDS)
    return f'{_begin(number, pid, host)},\n{_status(RUNNING | status)},\n"collective_counts": {{\n{counts}\n}}\n}}'


def missing(number: int, pid: int, *, dead: bool = False, version: tuple[int, ...] = NEW) -> str:
    """Return a rank that does not answer. Its text lacks a comma in 2.28.9."""
    comma = "" if version == OLD else ","
    return f"{_begin(number, pid, '10.0.0.2')}{comma}\n{_status({'unresponsive': True, 'considered_dead': dead})}\n}}"


def communicator(ranks: Sequence[str], others: Sequence[str] = (), name: str = "0x1") -> str:
    sizes = f'"size": {len(ranks) + len(others)},\n"ranks_count": {len(ranks)},\n"missing_ranks_count": {len(others)}'
    lists = f'"ranks": [\n{",".join(ranks)}\n],\n"missing_ranks": [\n{",".join(others)}\n]'
    return f'{{\n"hash": "{name}",\n"secondary_hash": "0x2:0x3",\n{sizes},\n{lists}\n}}'


def answer(*communicators: str) -> bytes:
    head = (
        f'"nccl_version": "2.29.2",\n"timestamp": "2026-06-19 06:51:56",\n"communicators_count": {len(communicators)}'
    )
    foot = '"ras": {\n"collection_time_sec": 0.000,\n"timeouts_count": 0\n}'
    return f'{{\n{head},\n"communicators": [\n{",".join(communicators)}\n],\n{foot}\n}}\n'.encode()


def _begin(number: int, pid: int, host: str) -> str:
    return f'{{\n"rank": {number},\n"host": "{host}",\n"pid": {pid},\n"cuda_dev": 0,\n"nvml_dev": 0'


def _status(values: dict[str, Any]) -> str:
    fields = ",\n".join(f'"{key}": {str(value).lower()}' for key, value in values.items())
    return f'"status": {{\n{fields}\n}}'


Send = Callable[[Any], None]


def says(text: bytes) -> Send:
    return lambda connection: connection.sendall(text)


def drips(connection: Any) -> None:
    """Send without an end, slowly."""
    for _ in range(1000):
        connection.sendall(b" ")
        time.sleep(0.02)


class Ras(socketserver.ThreadingTCPServer):
    """Listens on a port of its own, and keeps the lines that it was sent. Its answer to STATUS is what `send` does."""

    def __init__(self, send: Send, version: tuple[int, ...] = NEW) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.send, self.version = send, version
        self.lines: list[str] = []
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(socketserver.StreamRequestHandler):
    server: Ras

    def handle(self) -> None:
        with suppress(OSError):
            for line in self.rfile:
                text = line.decode().strip()
                self.server.lines.append(text)
                if text.upper() in {"STATUS", "VERBOSE STATUS"}:
                    self.server.send(self.request)
                    return
                self.wfile.write(self._reply(text).encode() + b"\n")

    def _reply(self, text: str) -> str:
        word = text.upper()
        if word.startswith("CLIENT PROTOCOL "):
            return "SERVER PROTOCOL 2"
        if word.startswith("SET FORMAT ") and self.server.version >= (2, 28, 7):
            return "OK" if word.endswith((" JSON", " TEXT")) else f"ERROR: Invalid format {text[11:]}"
        if word.startswith("MONITOR") and self.server.version >= NEW:
            known = set(word[7:].strip().split(",")) <= {"", "LIFECYCLE", "TRACE", "ALL"}
            return "OK" if known else f"ERROR: Invalid event group '{text[8:]}'"
        return f"ERROR: Unknown command {text}"
