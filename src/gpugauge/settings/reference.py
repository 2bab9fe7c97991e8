"""The reference of the settings, docs/settings.md, from the model."""

from __future__ import annotations

import functools
import sys
from itertools import groupby

from gpugauge.settings.kinds import Section
from gpugauge.settings.model import Settings
from gpugauge.settings.options import Setting, walk

_INTRODUCTION = """\
# Settings

<!-- Generated: make generate -->

Each setting has one name in three spellings. A flag wins over an environment variable, that over the file, that over
the default. The file is YAML, given by `--config.file` or `GPUGAUGE_CONFIG_FILE`:

```yaml
web:
  listen_address: [":10478"]
log:
  format: json
```

Lists: the flag is repeated, the variable is split at commas. A variable set to nothing counts as not set. An unknown
or ill-typed setting ends the start with exit code 2 and a sentence that names file, line and the nearest valid key.
"""


def reference() -> str:
    """Return docs/settings.md."""
    parts = [_INTRODUCTION]
    for section, settings in groupby(walk(), key=lambda setting: setting.key.rpartition(".")[0]):
        parts.append(_heading(section))
        parts.extend(map(_entry, settings))
    return "\n".join(parts)


def _heading(section: str) -> str:
    if not section:
        return "## Top level\n"
    described: Section = functools.reduce(getattr, section.split("."), Settings())
    return f"## {section}\n\n{described.__doc__}\n"


def _entry(setting: Setting) -> str:
    flag = f"`{setting.flag}`" + (f", `{setting.negative_flag}`" if setting.negative_flag else "")
    return (
        f"### {setting.key}\n\n{setting.description}\n\n"
        f"- flag: {flag}\n- environment: `{setting.environment}`\n"
        f"- type: {setting.kind}; default: {setting.default_text}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
