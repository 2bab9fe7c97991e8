from __future__ import annotations

import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.catalog import CATALOG
from gpugauge.settings.kinds import ConfigError, ListenAddress, parse_listen_address
from gpugauge.settings.load import load
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk
from tests.drawn import cases

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpugauge.yaml"


def refused(file: Path | None = None, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    """Return the sentence with which the settings are refused; flags are spelled web__telemetry_path."""
    if file is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, {name.replace("__", "."): value for name, value in flags.items()})
    return str(caught.value).replace(str(file), "FILE")


def test_defaults() -> None:
    settings = load(None, {}, {})

    assert Settings() == settings
    assert settings.web.listen_address == (ListenAddress("127.0.0.1", 10478),)


def test_flag_over_environment_over_file_over_default(file: Path) -> None:
    file.write_text("log: {level: error, format: json}\nweb: {max_connections: 10, telemetry_path: /a}\n")
    environ = {"GPUGAUGE_LOG_LEVEL": "warning", "GPUGAUGE_WEB_MAX_CONNECTIONS": "20"}

    settings = load(file, environ, {"web.max_connections": "30"})

    assert (settings.log.level, settings.log.format) == ("warning", "json")
    assert (settings.web.max_connections, settings.web.telemetry_path) == (30, "/a")


@cases(
    ("environ", "flags", "text"),
    [
        ({"GPUGAUGE_WEB_LISTEN_ADDRESS": ":1, [::1]:2"}, {}, ""),
        ({}, {"web.listen_address": (":1", "[::1]:2")}, ""),
        ({}, {}, 'web:\n  listen_address: [":1", "[::1]:2"]\n'),
        ({}, {}, 'web:\n  listen_address: ":1,[::1]:2"\n'),
    ],
)
def test_a_list_in_each_spelling(environ: dict[str, str], flags: dict[str, object], text: str, file: Path) -> None:
    file.write_text(text)

    assert load(file, environ, flags).web.listen_address == (("", 1), ("::1", 2))


def test_an_empty_file_and_empty_sections_set_nothing(file: Path) -> None:
    file.write_text("# nothing\n")
    assert load(file, {}, {}) == Settings()

    file.write_text("web:\nlog:\n")
    assert load(file, {"GPUGAUGE_LOG_LEVEL": ""}, {}) == Settings()


@cases("text", ["[0, 1]", "['0', 1]", "'0,1'", "[0,'1']", "0"])
def test_the_indexes_of_gpus_may_be_numbers(text: str, file: Path) -> None:
    file.write_text(f"driver: {{devices: {text}}}\n")

    assert load(file, {}, {}).driver.devices == (("0",) if text == "0" else ("0", "1"))


@cases("text", ["[true]", "true", "[1.5]", "[[0]]"])
def test_what_is_no_index_is_refused(text: str, file: Path) -> None:
    file.write_text(f"driver: {{devices: {text}}}\n")

    with pytest.raises(ConfigError, match=r"driver\.devices"):
        load(file, {}, {})


def test_off_is_text_and_no_boolean(file: Path) -> None:
    file.write_text("driver:\n  mode: off\ncollector:\n  process: false\n")

    settings = load(file, {}, {})

    assert (settings.driver.mode, settings.collector.process) == ("off", False)


@cases(
    ("text", "expected"),
    [
        (
            "web:\n  max_connection: 5\n",
            "FILE:2: web.max_connection: unknown key; did you mean web.max_connections?",
        ),
        ("log:\n\n  lvl: info\n", "FILE:3: log.lvl: unknown key; did you mean log.level?"),
        ("listen_address: ':1'\n", "FILE:1: listen_address: unknown key; did you mean web.listen_address?"),
        ("verdict:\n\tstalled_seconds: 1\n", "FILE:2: not valid YAML: a tab, where spaces are needed"),
        ("web: {slowed_ratio: 1}\n", "FILE:1: web.slowed_ratio: unknown key; did you mean faults.slowed_ratio?"),
        ("verdict: {slowed_ration: 1}\n", "FILE:1: verdict.slowed_ration: unknown key; the keys here are stalled_"),
        ("colector: {device: true}\n", "FILE:1: colector: unknown key; did you mean collector?"),
        ("zzzzzz: 1\n", "FILE:1: zzzzzz: unknown key; the keys here are web, log, driver, sampling, "),
        (
            "\nlog:\n  level: loud\n",
            "FILE:3: log.level: must be 'debug', 'info', 'warning' or 'error', not 'loud'",
        ),
        ("web: 5\n", "FILE:1: web: this is a section, its keys stand below it"),
        (
            "sampling:\n  interval_seconds: .nan\n",
            "FILE:2: sampling.interval_seconds: must be a finite number, not nan",
        ),
        (
            "sampling:\n  interval_seconds: 8\n",
            "FILE:1: sampling: stale_after_seconds must be at least twice interval_seconds",
        ),
        (
            "web:\n  listen_address: ['1::2:3']\n",
            "FILE:2: web.listen_address[0]: an IPv6 address with a port is written [address]:port, not '1::2:3'",
        ),
        (
            "web:\n  listen_address: [10478]\n",
            "FILE:2: web.listen_address[0]: an address is written host:port, not 10478",
        ),
        ("web: {}\nlog: {}\nweb: {}\n", "FILE:3: web is set twice, first in FILE:1"),
        ("- web\n", "FILE:1: expected `key: value`; the keys of a settings file are web, log, driver, "),
        ("web: [\n", "FILE:2: not valid YAML: expected the node content, but found '<stream end>'"),
        ("a: 1\nb: &x [1]\n", "FILE:2: anchors and aliases are not used; put a value that begins with & or * in"),
        ("a: 1\nb: *x\n", "FILE:2: anchors and aliases are not used; put a value that begins with & or * in quotes"),
        ("? [a]\n: 1\n", "FILE:1: a key must be plain text"),
        ("? 'a\n\n  b'\n: 1\n", "FILE:1: a key must be plain text"),
        ("web: !!python/object:os.system {}\n", "FILE:1: tags are not used; put a value that begins with ! in"),
        ("simulate: !!python/name:os.system x\n", "FILE:1: tags are not used"),
        ("web:\n  telemetry_path: !!bool 5\n", "FILE:2: tags are not used"),
        ("simulate: !!timestamp x\n", "FILE:1: tags are not used"),
        (
            "web: {}\n---\nlog: {}\n",
            "FILE:2: not valid YAML: expected a single document in the stream, but found another",
        ),
        ("web:\n  max_connections: " + "9" * 5000, "FILE:2: a number has too many digits"),
        (
            "log: {lvl: 1, level: loud}\n",
            "FILE:1: log.lvl: unknown key; did you mean log.level?\nFILE:1: log.level: must be 'debug', ",
        ),
        (
            "driver: {deadline_seconds: 5m}\n",
            "FILE:1: driver.deadline_seconds: must be less than or equal to 60, not 300.0",
        ),
        ('simulate: "\\udc00"\n', "FILE:1: \\ud800 to \\udfff alone are no characters"),
        ("web: \x00\n", "FILE:1: not valid YAML: a control character is not allowed"),
        ("[" * 5000, "FILE: nested too deeply"),
        ("simulate: " + "x" * (1 << 20), "FILE: larger than 1048576 bytes, this is no settings file"),
    ],
)
def test_sentence_about_a_bad_file(text: str, expected: str, file: Path) -> None:
    assert refused(file, text).startswith(expected)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{file}: cannot be read: No such file or directory")):
        load(file, {}, {})


def test_a_bad_variable_is_named() -> None:
    sentence = refused(environ={"GPUGAUGE_WEB_MAX_CONNECTIONS": "many"})

    assert sentence.startswith("GPUGAUGE_WEB_MAX_CONNECTIONS: web.max_connections: must be a whole number, not 'many'")


def test_a_bad_flag_is_named() -> None:
    sentence = refused(web__telemetry_path="metrics")

    assert sentence.startswith("--web.telemetry-path: must be a path such as /metrics")


def test_a_flag_does_not_hide_a_section_of_the_wrong_type(file: Path) -> None:
    assert (
        refused(file, "web: 5\n", web__telemetry_path="/m") == "FILE:1: web: this is a section, its keys stand below it"
    )


@cases(
    "name",
    [
        "GPUGAUGE_PORT",
        "GPUGAUGE_SERVICE_HOST",
        "GPUGAUGE_WEB_SERVICE_PORT",
        "GPUGAUGE_WEB_PORT_10478_TCP_ADDR",
        "GPUGAUGE_PORT_10478_TCP",
        "GPUGAUGE_HOOK",
        "GPUGAUGE_HOOK_RECAP",
        "GPUGAUGE_RUN_ID",
        "GPUGAUGE_CONFIG_FILE",
        "GPUGAUGERIA",
    ],
)
def test_variables_of_kubernetes_and_of_other_parts_are_ignored(name: str) -> None:
    assert load(None, {name: "tcp://10.0.0.1:10478"}, {}) == Settings()


@cases(
    ("name", "near"),
    [
        ("GPUGAUGE_NOSUCH", None),
        ("GPUGAUGE_", None),
        ("GPUGAUGE_HOOK_SOCKT", "GPUGAUGE_HOOK_SOCKET"),
        ("GPUGAUGE_RUNID", "GPUGAUGE_RUN_ID"),
        ("GPUGAUGE_CONFIG", "GPUGAUGE_CONFIG_FILE"),
        ("GPUGAUGE_SIMULATED", "GPUGAUGE_SIMULATE"),
    ],
)
def test_every_unknown_variable_is_refused_with_the_nearest_name(name: str, near: str | None) -> None:
    sentence = refused(environ={name: ""})

    assert sentence.startswith(f"{name}: unknown variable")
    assert near is None or sentence.endswith(f"; did you mean {near}?")


def test_every_variable_that_the_code_reads_is_known() -> None:
    text = "".join(
        file.read_text()
        for folder, ending in (("src", "*.py"), ("deploy", "*.sh"), ("deploy", "*.env"))
        for file in (Path(__file__).parents[2] / folder).rglob(ending)
    )
    names = set(re.findall(r"\bGPUGAUGE_[A-Z0-9_]+[A-Z0-9]\b", text)) - {"GPUGAUGE_PORT_10478_TCP_ADDR"}

    assert len(names) > 7
    for name in names:
        load(None, {name: ""}, {})


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().web.max_connections = 9  # type: ignore[misc]  # the mistake that is tried


def test_given_keys_are_recorded_and_pickled(file: Path) -> None:
    file.write_text("path:\n  pod_logs: /var/log\n  procfs:\nlog: {}\n")

    settings = load(file, {"GPUGAUGE_LOG_LEVEL": "info"}, {"collector.device": True})
    handed_over = pickle.loads(pickle.dumps(settings))

    assert handed_over == settings == Settings()
    assert handed_over.given == settings.given == {"path.pod_logs", "log.level", "collector.device"}
    assert handed_over.places["path.pod_logs"] == f"{file}:2"
    assert handed_over.places["log.level"] == "GPUGAUGE_LOG_LEVEL"
    assert refused(file, "given: [log.level]\n").startswith("FILE:1: given: unknown key")


def test_collectors() -> None:
    def enabled(**flags: bool) -> set[str]:
        return set(load(None, {}, {f"collector.{name}": value for name, value in flags.items()}).collectors())

    # Every collector of the catalogue has its switch; the exporter's own metrics cannot be switched off.
    every = set(CATALOG) - {"exporter"}
    assert enabled() == every
    assert enabled(process=False) == every - {"process"}
    assert enabled(disable_defaults=True, device=True, training=False) == {"device"}
    assert enabled(disable_defaults=True) == set()


@cases(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":80", ("", 80)),
        ("[::]:80", ("::", 80)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 10478)),
        ("node.example", ("node.example", 10478)),
    ],
)
def test_listen_address(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen_address(text) == expected


@cases("text", ["", " ", "a:b", "a:-1", "a:65536", "::1", "a:", "a:¹", "99999", "80", None])
def test_listen_address_refused(text: str | None) -> None:
    with pytest.raises(ValueError, match=r"host:port|is not a port|is written"):
        parse_listen_address(text)


def test_listen_address_parses_its_own_text() -> None:
    for address in (ListenAddress("::1", 5), ListenAddress("", 6), ListenAddress("a", 7)):
        assert parse_listen_address(str(address)) == address


def test_spellings_are_unique_and_described() -> None:
    settings = list(walk())

    assert len({setting.flag for setting in settings}) == len(settings)
    assert len({setting.environment for setting in settings}) == len(settings)
    assert all(setting.description.endswith(".") for setting in settings)


@given(st.binary(max_size=300) | st.text("web:log{}[]-\n &*!'\"#|>01.eE+~", max_size=80).map(str.encode))
def test_any_file_is_loaded_or_refused_with_its_name(content: bytes) -> None:
    with NamedTemporaryFile() as stream:
        stream.write(content)
        stream.flush()
        try:
            settings = load(Path(stream.name), {}, {})
        except ConfigError as error:
            assert str(error).startswith(stream.name)  # noqa: PT017  (any input, valid ones too)
        else:
            assert isinstance(settings, Settings)
