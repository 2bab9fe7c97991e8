"""CPU seconds a minute and proportional memory, idle and scraped each second, ours beside nvitop-exporter's."""

from __future__ import annotations

import threading
import time
from typing import Any

from bench.measure import Program, gpugauge, nvitop_exporter, report, series

SECONDS = 30.0


def spent(programs: tuple[Program, ...], seconds: float, scraped: bool) -> dict[str, dict[int, float]]:
    """Let the programs run beside each other; return CPU seconds a minute by program and pid."""
    stop = threading.Event()

    def scrape(program: Program) -> None:
        connection = program.connect()
        while not stop.wait(1.0):
            program.scrape(connection)

    threads = [threading.Thread(target=scrape, args=[p]) for p in programs] if scraped else []
    before = {p.name: p.cpu_seconds() for p in programs}
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    after = {p.name: p.cpu_seconds() for p in programs}
    stop.set()
    for thread in threads:
        thread.join()
    return {
        name: {pid: (value - before[name].get(pid, 0.0)) * 60 / seconds for pid, value in times.items()}
        for name, times in after.items()
    }


def main(scenario: str = "bench-24") -> None:
    rows: list[dict[str, Any]] = []
    with gpugauge(scenario) as ours, nvitop_exporter(scenario) as peer:
        programs = (ours, peer)
        time.sleep(6)  # both are warm, ours has read every group
        idle = spent(programs, SECONDS, scraped=False)
        scraped = spent(programs, SECONDS, scraped=True)
        for program in programs:
            sizes = program.pss_megabytes()
            parts = {program.process.pid: "parent" if len(sizes) > 1 else "all"}
            total = {"exporter": program.name, "part": "all", "series": series(program.plain())}
            rows.append(
                {
                    **total,
                    "idle CPU s/min": sum(idle[program.name].values()),
                    "scraped CPU s/min": sum(scraped[program.name].values()),
                    "PSS MB": sum(sizes.values()),
                }
            )
            if len(sizes) > 1:
                rows += [
                    {
                        "exporter": program.name,
                        "part": parts.get(pid, "worker, simulator included"),
                        "series": "",
                        "idle CPU s/min": idle[program.name][pid],
                        "scraped CPU s/min": scraped[program.name][pid],
                        "PSS MB": size,
                    }
                    for pid, size in sizes.items()
                ]
    report(f"cost of {scenario}, sampled each second", rows)


if __name__ == "__main__":
    main()
