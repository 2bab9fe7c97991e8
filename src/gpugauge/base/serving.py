"""The commands of servers and interactive programs, which use PyTorch on a GPU and are no trainings."""

from __future__ import annotations

import re

# By program: regular expressions of the short name of a command, as in the label workload_command. They match a whole
# name, in any case: `vllm`, `vllm.entrypoints.openai.api_server`, `VLLM::EngineCore`.
PROGRAMS = {
    "vLLM": ("vllm([.:_-].*)?",),
    "SGLang": ("sglang([.:_-].*)?",),
    "Triton": ("tritonserver", "triton_python_backend_stub"),
    "TGI": ("text[-_]generation[-_](server|launcher|router).*",),
    "TorchServe": ("torchserve", "model_service_worker([.]py)?", "ts[.]model_service_worker"),
    "Ollama": ("ollama([._-].*)?",),
    "Ray Serve": ("ray::(ServeReplica|ServeController|ProxyActor|HTTPProxyActor).*",),
    "notebooks": (
        "ipykernel(_launcher)?",
        "ipython[0-9.]*",
        "jupyter([-_].*)?",
        "colab_kernel_launcher([.]py)?",
        "ipykernel[.].*",
    ),
}
COMMANDS = f"(?i:{'|'.join(expression for row in PROGRAMS.values() for expression in row)})"


def serves(command: str | None) -> bool:
    """Return whether the short name of a command is that of a server or an interactive program."""
    return command is not None and re.fullmatch(COMMANDS, command) is not None
