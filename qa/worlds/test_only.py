"""`/metrics` of chosen processes and jobs: the lines of the whole body that are theirs, and no others."""

from __future__ import annotations

import random
import zlib
from urllib.parse import urlencode

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.samples import Sample
from tests.drawn import draws, seeds

from gpugauge.exposition.accept import OPENMETRICS
from gpugauge.exposition.render import Exposition
from gpugauge.web.routes import standard_routes
from gpugauge.web.server import Reply, Request
from gpugauge.workload.job import job_words
from qa.worlds import nodes


def scraped(exposition: Exposition, query: str, **headers: str) -> Reply:
    handler = standard_routes(exposition, "/metrics", lambda: None)["/metrics"].handler
    sent = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    reply = handler(Request("GET", "/metrics", query, sent, b"", "127.0.0.1"))
    assert isinstance(reply, Reply)
    return reply


def samples(body: bytes) -> list[Sample]:
    return [sample for family in plain(body.decode()) for sample in family.samples]


def test_a_snapshot_is_rendered_for_a_few_choices_only() -> None:
    exposition = Exposition(1e12)
    exposition.publish(nodes.draw(1).snapshot())

    answers = [scraped(exposition, f"process={n}").status for n in range(30)]
    assert answers == [200] * 16 + [503] * 14
    assert scraped(exposition, "process=3").status == scraped(exposition, "").status == 200
    everything = "&".join(
        f"process={s.labels['process']}" for s in samples(scraped(exposition, "").body) if "process" in s.labels
    )
    exposition.publish(nodes.draw(1).snapshot())
    answers = [scraped(exposition, f"{everything}&process={n}").status for n in range(9)]
    assert answers.count(200) <= 4, "not more than three whole bodies, and one"


@seeds(draws(10, 300))
def test_the_lines_are_those_of_the_processes_and_of_their_gpus(seed: int) -> None:
    draw, exposition = random.Random(seed), Exposition(1e12)
    exposition.publish(nodes.draw(seed).snapshot())
    whole = samples(scraped(exposition, "").body)
    of_job = {
        (name, s.labels["process"])
        for s in whole
        if {"workload_job", "process"} <= s.labels.keys() and s.labels["workload_job"]
        for name in (s.labels["workload_job"], job_words(s.labels["workload_job_kind"], s.labels["workload_job"]))
    }
    processes = sorted({s.labels["process"] for s in whole if "process" in s.labels})
    chosen = draw.sample([*processes, "unknown", "é &="], k=draw.randrange(3))
    jobs = draw.sample([*sorted({job for job, _ in of_job}), "none"], k=draw.randrange(2))
    if not chosen + jobs:
        return
    wanted = {*chosen, *(process for job, process in of_job if job in jobs)}
    gpus = {s.labels["uuid"] for s in whole if s.labels.get("process") in wanted and "uuid" in s.labels}
    expected = [
        s
        for s in whole
        if s.name.startswith("gpugauge_")
        or s.labels.get("process") in wanted
        or ("process" not in s.labels and s.labels.get("uuid") in gpus)
    ]
    query = urlencode([("process", each) for each in chosen] + [("job", each) for each in jobs])

    body = scraped(exposition, query).body
    assert samples(body) == expected
    assert zlib.decompress(scraped(exposition, query, Accept_Encoding="gzip").body, 31) == body
    text = scraped(exposition, query, Accept=OPENMETRICS).body.decode()
    found = openmetrics(text)  # type: ignore[no-untyped-call]  # the client's
    assert len([s for family in found for s in family.samples]) == len(expected)
    assert samples(scraped(exposition, "").body) == whole, "the whole body stays as it is"
