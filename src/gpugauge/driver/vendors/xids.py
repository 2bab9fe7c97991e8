"""Xid codes: the name, and the class of the action that NVIDIA's catalogue recommends.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

import json
from pathlib import Path

# By class, code and name of its errors. What to do: `application` restart the application, `ignorable` nothing unless
# other errors follow, `reset` reset the GPU, `workflow` that of the catalogue for memory and NVLink, `node` check the
# machine, `recovery` see gpu_recovery_action, `follow_up` see the earlier error. `other` has no class.
_NAMES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
XID_CLASSES = {kind: frozenset(map(int, names)) for kind, names in _NAMES.items()}
_LABELS = {code: (code, kind, name) for kind, names in _NAMES.items() for code, name in names.items()}
# Codes of faults that last until a reset, and those that explain a row that waits for one.
LASTING = XID_CLASSES["reset"] | XID_CLASSES["workflow"] | XID_CLASSES["node"] | {63, 94}
# NVLink errors whose severity only the kernel log has.
IN_LOG = range(144, 151)
# Those of them after which a driver from R565 on sets its recovery action: none means that the fault is over.
LINKED = frozenset({48, 62, 63, 64, 74, 79, 94, 95, 110, 120, 136, *IN_LOG, 155, 156, 158})


def xid_labels(xid: int) -> tuple[str, ...]:
    """Return code, class and name, the labels of metrics; `other` and no name for a code without an entry."""
    return _LABELS.get(str(xid), (str(xid), "other", ""))
