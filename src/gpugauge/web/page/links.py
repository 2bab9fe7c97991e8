"""Links from the page to the sections of the runbook and to the dashboards of Grafana, and its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from gpugauge.driver.vendors import VENDORS
from gpugauge.web.page.draw import copy_button, text

# A command ends where the sentence goes on, or at its backtick; its own lists have no blanks.
_PROGRAMS = [*(re.escape(vendor.tool) for vendor in VENDORS), "dmesg", "modprobe", "py-spy", "kubectl", "fuser"]
_PROGRAMS += ["scontrol", "squeue", "scancel", "podman", "docker"]
_PROGRAMS += [r"kill(?= \d)", r"systemctl(?: --user)?(?= (?:start|stop|reboot))"]
_PROGRAMS += [r"gpugauge(?= (?:run|forget|doctor|release|attach|status)\b)"]
_COMMAND = re.compile(rf"\b(?:{'|'.join(_PROGRAMS)}) (?:[^,;()…`]|,(?=\S))*[^,;()…`\s]")


def parts(advice: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of an advice in their order, and whether each is a command."""
    end = 0
    for found in _COMMAND.finditer(advice):
        if advice[found.end() :].lstrip().startswith("…"):  # a form, which has to be filled in
            continue
        before, quoted = advice[end : found.start()], advice[found.start() - 1 : found.end() + 1] == f"`{found[0]}`"
        yield before[: len(before) - quoted], False
        yield found[0], True
        end = found.end() + quoted
    yield advice[end:], False


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses from the settings; an empty one gives no links. `daemon` is the address for commands on this
    machine, empty if it is the default; None if commands cannot examine its processes, because they are simulated.
    `listed` are the problems on the page by process or uuid and advice: an advice stands there once.
    """

    runbook: str = ""
    grafana: str = ""
    daemon: str | None = ""
    listed: Mapping[tuple[str, str | None], str] = field(default_factory=dict)

    def advice(self, words: str | None, section: str | None, gain: str | None = None) -> str:
        """Return an advice as HTML: its commands as buttons that copy them, the expected gain in words, and a link to
        its section of the runbook.
        """
        shown = "".join(copy_button(part) if command else text(part) for part, command in parts(words or ""))
        shown += f". <b>Expected:</b> {text(gain)}." if gain else ""
        if not words or not section or not self.runbook:
            return shown
        return f"{shown} <small>{self.section('runbook', section, f': {section}')}</small>"

    def section(self, words: str, section: str | None, hidden: str = "") -> str:
        """Return words as a link to a section of the runbook; `hidden` is for screen readers."""
        if not section or not self.runbook:
            return text(words)
        more = f'<span class="hidden">{text(hidden)}</span>' if hidden else ""
        return f'<a href="{text(self.runbook)}#{text(section.lower())}">{text(words)}{more}</a>'

    def doctor(self, pid: int | None) -> str:
        """Return the button with the command that examines a process, "" if there is none."""
        if pid is None or self.daemon is None:
            return ""
        return copy_button(f"gpugauge doctor {pid}" + (f" --url {self.daemon}" if self.daemon else ""))

    def fleet(self) -> str:
        """Return the link to the dashboard of all nodes, "" without Grafana."""
        return f'<a href="{text(self.grafana.rstrip("/"))}/d/gpugauge-fleet">Grafana</a>\n' if self.grafana else ""

    def job(self, workload: Mapping[str, str]) -> str:
        """Return the address of the dashboard of a workload's job as the value of an attribute, "" if there is none."""
        if not self.grafana or not workload.get("job"):
            return ""
        variables = {"kind": workload.get("job_kind", ""), "namespace": workload.get("namespace", "")}
        query = urlencode(
            {f"var-{key}": value for key, value in variables.items() if value} | {"var-workload": workload["job"]}
        )
        return text(f"{self.grafana.rstrip('/')}/d/gpugauge-job?{query}")


NO_LINKS = Links()
