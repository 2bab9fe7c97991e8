"""The GPU models of scenarios, in presets.json: figures of data sheets (megahertz with a process and without), and what
each lacks. Architectures: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MIB = 1 << 20
MAX_NVLINKS = 36
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# By feature: the functions (patterns) and the field ids that a GPU without it does not support. `utilization` is not
# supported for a whole GPU with MIG enabled.
WITHOUT: dict[str, tuple[list[str], list[int]]] = {
    name: (lacks["functions"], lacks["fields"]) for name, lacks in _TABLES["without"].items()
}
_NOT_OF_AMD = dict.fromkeys(_TABLES["models"]["h100"], 0) | {"clock_video": (0, 0), "part_number": "", "lacks": ()}
PRESETS: dict[str, dict[str, Any]] = {
    model: {
        **(_NOT_OF_AMD if "amd" in figures else {}),
        **figures,
        "memory": figures["memory_mib"] * _MIB,
        "memory_reserved": figures["memory_reserved_mib"] * _MIB,
    }
    for model, figures in _TABLES["models"].items()
}
