"""Targets for files that people write: settings, web configurations, scenarios, recordings."""

from __future__ import annotations

import ctypes
import io
import json
from contextlib import ExitStack
from pathlib import Path

import yaml
from tests.certificates import Authority
from tests.golden_metrics import GROUPS

from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.driver.worker import Service
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import load
from gpugauge.simulator.device.world import World
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.nvml.library import Library
from gpugauge.simulator.scenario.load import parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.web.config.access import load_web_config
from qa.fuzz.target import Attempt, Target, as_yaml, lines, written
from qa.gpu.recording import Recorder
from qa.gpu.replay import Replay

# PyYAML looks ahead over up to 1,024 brackets for each bracket, which takes seconds for a file of brackets only.
YAML_MAX_CPU_SECONDS = 10.0
YAML_TOKENS = (
    *(
        b": ",
        b"\n",
        b"\n  ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"&a ",
        b"*a",
        b"<<: ",
        b"? ",
        b"|\n",
        b">\n",
        b"---\n",
        b"\t",
    ),
    *(
        b"!!int ",
        b"!!bool ",
        b"!!float ",
        b"!!null ",
        b"!!timestamp ",
        b"!!binary ",
        b"!!set ",
        b"!!omap ",
        b"!!pairs ",
    ),
    *(
        b"!!python/object:x ",
        b"!!map ",
        b"!!seq ",
        b"!!str ",
        b"!x ",
        b"%YAML 9.9\n",
        b"0x",
        b"0b",
        b"1:60",
        b"2026-13-99",
    ),
    *(b"'", b'"', b"\\ud800", b"\x00", b"\xff", b"\xef\xbb\xbf", b".nan", b".inf", b"[" * 1200, b"~", b"#"),
)

_SETTINGS = (
    {
        "web": {"listen_address": ["127.0.0.1:10478"], "telemetry_path": "/metrics", "max_connections": 64},
        "sampling": {"interval_seconds": 1.0, "stale_after_seconds": 30},
        "driver": {"mode": "auto", "devices": ["0"], "deadline_seconds": 5},
        "metrics": {"include": ["gpu_*"], "exclude": ["torch_*"]},
    },
    {
        "collector": {"device": True, "links": False},
        "log": {"level": "info", "format": "json"},
        "hook": {"linger_seconds": 300, "socket": "/run/gpugauge/hook.sock"},
        "process": {"max_per_device": 64},
        "kubernetes": {"kubelet_socket": "/x", "resources": ["nvidia.com/"]},
        "verdict": {"stalled_seconds": 300},
        "path": {"procfs": "/proc"},
    },
)

_WEB = (
    {
        "tls_server_config": {
            "cert_file": "server.pem",
            "key_file": "server.key",
            "client_ca_file": "server.pem",
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_allowed_sans": ["prometheus"],
            "min_version": "TLS12",
            "max_version": "TLS13",
            "cipher_suites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
            "curve_preferences": ["X25519"],
        },
        "http_server_config": {"http2": True, "headers": {"X-Frame-Options": "deny", "Strict-Transport-Security": "x"}},
    },
    {
        "basic_auth_users": {"alice": "$2y$10$" + "a" * 53, "bob": "$2b$04$" + "." * 53},
        "rate_limit": {"interval": "1m30s", "burst": 5},
    },
)

_SCENARIOS = (
    {
        "description": "a test",
        "gpus": [
            {"model": "h100", "count": 2, "load": 0.3},
            {"model": "a100", "mig": [{"profile": "1g.10gb", "count": 2, "end": 60}]},
        ],
        "processes": [
            {
                "pid": 7,
                "gpus": [0],
                "memory": "1GiB",
                "pipeline": {"kernels": 0.4, "host": 0.1, "load": 0.6},
                "phases": {"every": 900, "checkpointing": 30},
            },
            {"pid": 8, "gpus": [2], "instance": 0, "memory": 4096, "load": {"shape": "sine", "period": 8}},
        ],
        "faults": [{"call": "nvmlDeviceGetPower*", "gpu": 0, "code": 15, "start": 5, "end": 9}],
    },
    {
        "description": "points",
        "driver": {"version": "550.1", "missing": ["nvmlGpm*"]},
        "gpus": {"model": "t4"},
        "processes": [
            {
                "pid": 5,
                "gpus": "all",
                "per_gpu": 2,
                "load": {"shape": "points", "points": [[0, 0.1], [5, 0.4]], "repeat": True},
                "environment": {"A": "b"},
                "engines": {"encoder": 0.5},
            }
        ],
    },
)
# Nested lists with nine references to the same list each: small in memory, gigabytes when written out.
_BOMB = b"[&a [x,x,x,x,x,x,x,x,x],%s]" % b",".join(
    b"&%c [%s]" % (98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8)
)


def _web(folder: Path, _: ExitStack) -> Attempt:
    Authority().issue(folder, "server", "localhost")
    return written("web.yml", load_web_config)(folder, ExitStack())


def _scenario(data: bytes) -> None:
    try:
        made = parse_scenario(data.decode(), "fuzz.yaml", "fuzz")
    except UnicodeDecodeError:  # `load_scenario` reports it
        raise ConfigError from None
    made._start |= {"monotonic": 0.0, "unix": 1.0}
    plain = made.simulation()
    plain["scenario"] |= {"faults": []}  # faults hang or crash on purpose
    second = 12.0
    service = simulated_service(lambda: second)
    opened = service.answer({"id": 1, "op": "open", "simulate": plain})
    if opened.failed is None and opened.values["driver"]["device_count"]:
        read = service.answer({"id": 2, "op": "read", "index": 0, "groups": list(GROUPS)})
        opened = read if read.failed is not None else opened
    assert opened.failed is None or ": " not in opened.failed_call, opened.failed_call
    SimulatedSessions(made, clock=lambda: second).view()


def _recording(path: Path) -> None:
    use_library(Replay(path))
    service = Service(Nvml(lambda: 0.0))
    service.answer({"id": 1, "op": "open"})
    service.answer({"id": 2, "op": "read", "index": 0, "groups": ["static", "processes"]})


def _recorded() -> list[object]:
    """Return the first lines of a recording of a simulated GPU."""
    file = io.StringIO()
    text = yaml.safe_dump(_SCENARIOS[1])
    library = Library(World(parse_scenario(text, "seed.yaml", "seed").simulation(), lambda: 0.0))
    recorder = Recorder(library, file, "550.1")
    count, version = ctypes.c_uint(), ctypes.create_string_buffer(80)
    recorder.nvmlInitWithFlags(0)
    recorder.nvmlDeviceGetCount_v2(ctypes.byref(count))
    recorder.nvmlSystemGetDriverVersion(version, 80)
    return [json.loads(line) for line in file.getvalue().splitlines()]


_RECORDED = _recorded()

FILES = (
    Target(
        "settings files",
        written("settings.yaml", lambda path: load(path, {}, {})),
        (ConfigError,),
        (*as_yaml(_SETTINGS), *(yaml.safe_dump(tree).encode() for tree in _SETTINGS), b"web: " + _BOMB),
        (*YAML_TOKENS, b"web:\n  listen_address: ", b"sampling:\n  interval_seconds: "),
        _SETTINGS,
        max_cpu_seconds=YAML_MAX_CPU_SECONDS,
    ),
    Target(
        "web configuration files",
        _web,
        (ConfigError,),
        (*as_yaml(_WEB), *(yaml.safe_dump(tree).encode() for tree in _WEB)),
        (*YAML_TOKENS, b"basic_auth_users:\n  a: ", b"tls_server_config:\n  cert: ", b"cert_file: ", b"rate_limit: "),
        _WEB,
        max_cpu_seconds=YAML_MAX_CPU_SECONDS,
    ),
    Target(
        "scenario files",
        lambda _folder, _stack: _scenario,
        (ConfigError,),
        (*as_yaml(_SCENARIOS), *(yaml.safe_dump(tree).encode() for tree in _SCENARIOS), b"description: " + _BOMB),
        (*YAML_TOKENS, b"gpus: *h\n", b"faults: [{hang: true}]\n", b"mig: ", b"count: 9\n", _BOMB),
        _SCENARIOS,
        max_cpu_seconds=YAML_MAX_CPU_SECONDS,
    ),
    Target(
        "recordings",
        written("gpu.jsonl", _recording),
        (ConfigError, ValueError),
        (lines(_RECORDED),),
        (b"\n", b'{"f":"x","a":[],"r":0,"o":{},"us":1}', b'"o":{"0":"', b'"a":', b"[" * 2000, b"null", b"-1", b"\xff"),
        (_RECORDED,),
        lines,
    ),
)
