"""Programs that use a GPU and are no trainings, and for how long one may hold a GPU unused, for alerts and status."""

from __future__ import annotations

import re
from collections.abc import Collection

IDLE_SECONDS = 1800
"""For which a program may hold GPUs that it does not use. One that uses them for a share of IDLE_USE is not idle."""
IDLE_USE = 0.05

# By role: regular expressions of the short name of a command, as in the label workload_command. They match a whole
# name, in any case: `vllm`, `vllm.entrypoints.openai.api_server`, `VLLM::EngineCore`.
ROLES = {
    "server": (
        *("vllm([.:_-].*)?", "sglang([.:_-].*)?", "tritonserver", "triton_python_backend_stub"),
        *("text[-_]generation[-_](server|launcher|router).*", "torchserve", "model_service_worker([.]py)?"),
        *("ts[.]model_service_worker", "ollama([._-].*)?"),
        "ray::(ServeReplica|ServeController|ProxyActor|HTTPProxyActor).*",
    ),
    "notebook": (
        *("ipykernel(_launcher)?", "ipython[0-9.]*", "jupyter([-_].*)?", "colab_kernel_launcher([.]py)?"),
        "ipykernel[.].*",
    ),
}
COMMANDS = f"(?i:{'|'.join(expression for row in ROLES.values() for expression in row)})"


def role(command: str | None) -> str | None:
    """Return the role of a program by the short name of its command, None if it is no server and no notebook."""
    return next((name for name, row in ROLES.items() if re.fullmatch(f"(?i:{'|'.join(row)})", command or "")), None)


# Programs that start the ranks of a training, and load torch themselves.
LAUNCHERS = "torchrun|torch[.]distributed[.](run|launch)|accelerate([.]commands[.].+)?|deepspeed([.]launcher[.].+)?"


def launches(command: str | None) -> bool:
    """Return whether the short name of a command is that of a launcher."""
    return re.fullmatch(LAUNCHERS, command or "") is not None


def only_serve(commands: Collection[str]) -> bool:
    """Return whether all of some commands, by their short names, serve models."""
    return bool(commands) and all(role(command) == "server" for command in commands)
