"""The reference of the settings, docs/settings.md, generated from the model."""

from __future__ import annotations

import functools
import textwrap

from gpugauge.settings.kinds import Section
from gpugauge.settings.model import Settings
from gpugauge.settings.options import Setting, walk

_INTRODUCTION = """\
# Settings

<!-- Generated: make generate -->

Each setting can be given as a flag, as an environment variable, and in a file. The order of precedence is: flag,
environment variable, file, default. The file is YAML; `--config.file` or `GPUGAUGE_CONFIG_FILE` names it:

```yaml
web:
  listen_address: [":10478"]
log:
  format: json
```

A duration is a number of seconds, or text such as `90s`, `10m` or `1h30m`. To give a list, repeat the flag, or separate
the values of the variable with commas. An empty variable counts as not set. With an unknown key or a value of the wrong
type, the daemon exits with status 2 and prints a line for each mistake, up to ten. It names the file, the line, the key
and what was expected. For an unknown key it also names the nearest valid key. A variable that begins with `GPUGAUGE_`
and that no part of gpugauge reads is refused in the same way. Only the variables that Kubernetes sets for a service
named gpugauge are ignored.

`gpugauge serve --config.check` with the same flags, variables and file only checks them. If they are valid, it also
checks the patterns of `metrics` and the files that settings name, such as `web.config.file`. It prints a line for each
mistake, and exits with 0 if the daemon can start with them, else with 2.
"""


def reference() -> str:
    """Return docs/settings.md."""
    parts = [_INTRODUCTION]
    by_section: dict[str, list[Setting]] = {}
    for setting in walk():
        by_section.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    for section, settings in by_section.items():
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
        f"### {setting.key}\n\n{textwrap.fill(setting.description, 120, break_on_hyphens=False)}\n\n"
        f"- flag: {flag}\n- environment: `{setting.environment}`\n"
        f"- type: {setting.kind}; default: {setting.default_text}\n"
    )
