"""Links from the page: to the sections of the runbook and to the dashboards of Grafana."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from gpugauge.web.page.draw import text


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses from the settings; an empty one gives no links."""

    runbook: str = ""
    grafana: str = ""

    def advice(self, words: str | None, section: str | None) -> str:
        """Return an advice as HTML, with a link to its section of the runbook."""
        if not words or not section or not self.runbook:
            return text(words)
        return f'<a href="{text(self.runbook)}#{text(section.lower())}">{text(words)}</a>'

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
