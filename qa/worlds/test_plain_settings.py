"""Drawn command lines and environments: the short way gives what the full way gives, or leaves it to that."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from tests.drawn import EVERYTHING

from gpugauge.cli.serve import command
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.options import Setting, walk
from gpugauge.settings.plain import plain_settings

SETTINGS = list(walk())
# Values that are right for some settings, nearly right, or wrong; in every setting.
VALUES = [
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "+1",
        "01",
        "1_0",
        "1.",
        ".5",
        "0.5",
        "1.0",
        "1e3",
        "nan",
        "inf",
        "\u0661",
        "12",
        "60",
        "1000",
    ),
    *("true", "false", "True", "TRUE", "yes", "on", "off", "t", "auto", "required", "info", "Info", "debug", "json"),
    *(":1", ":65535", ":65536", "[::1]:2", "::1", "localhost", "a,b", "a,,b", ",", " a , b ", "nvidia.com/", "gpu_*"),
    *("/", "/metrics", "/metrics/", "/a b", "/é", "é", "a\nb", "\u2028", "\x00", "\udc80", "/tmp/x", "../x", "~", "."),
    *(
        "http://g.example",
        "https://g.example/d",
        "http://a b",
        "ftp://x",
        "http://x\n",
        "kubelet",
        "api",
        "--log.level",
    ),
    *(
        "--",
        "-h",
        "33554432",
        "268435456",
        "99999999999999999",
        "1234567890123456",
        "0.1",
        "0.10",
        "4.9",
        "5.000000001",
    ),
]


def plain(setting: Setting) -> st.SearchStrategy[str]:
    """Draw values of the kind of the setting, most of them valid."""
    if setting.annotation is bool:
        return st.sampled_from(["true", "false"])
    if setting.annotation in {int, float}:
        low, high = (int(setting.limits.get(name, other)) for name, other in (("ge", 0), ("le", 10**9)))
        numbers = st.integers(low - 1, high + 1)
        return numbers.map(str) if setting.annotation is int else st.builds("{}.{}".format, numbers, st.integers(0, 99))
    if setting.options[0] in {str, Path} or setting.repeatable:
        return st.sampled_from(VALUES)
    return st.sampled_from([str(option) for option in setting.options])


@st.composite
def starts(draw: st.DrawFn) -> tuple[list[str], dict[str, str]]:
    """Draw arguments and variables."""
    arguments: list[str] = []
    environ = {"PATH": "/bin", "PYTHONPATH": "x"}
    for setting in draw(st.lists(st.sampled_from(SETTINGS), max_size=5)):
        value = draw(st.sampled_from(VALUES) if draw(st.integers(0, 4)) == 0 else plain(setting))
        ways = ["switch", "no"] if setting.annotation is bool else ["equals", "equals", "equals", "separate"]
        match draw(st.sampled_from(["switch", "half", *4 * [*ways, "variable"]])):
            case "equals":
                arguments.append(f"{setting.flag}={value}")
            case "separate":
                arguments += [setting.flag, value]
            case "switch":
                arguments.append(setting.flag)
            case "no":
                arguments.append(setting.negative_flag or setting.flag.replace("--", "--no-"))
            case "variable":
                environ[setting.environment] = value.replace("\0", "")
            case "half":
                arguments.append(setting.flag[: draw(st.integers(2, len(setting.flag)))])
    others = ["GPUGAUGE_JOB", "GPUGAUGE_PORT_1_TCP", "GPUGAUGE_SERVICE_HOST", "GPUGAUGE_LOG_LEVE", "GPUGAUGE_WEB_PORT"]
    if draw(st.integers(0, 5)) == 0:
        environ[draw(st.sampled_from(others))] = "x"
    if draw(st.integers(0, 19)) == 0:
        arguments += draw(st.sampled_from([["--help"], ["-h"], ["--"], ["x"], ["--config.file=/x"], ["--config.file"]]))
    return arguments, environ


def full(arguments: list[str], environ: dict[str, str]) -> Settings | str:
    """Return the settings of click, YAML and pydantic, or the sentence with which they are refused."""
    read: list[Settings | str] = []

    def use(load: Any) -> int:
        try:
            read.append(load())
        except ConfigError as error:
            read.append(str(error))
        return 0

    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        command.main(arguments, prog_name="gpugauge serve", obj=use, standalone_mode=False)
    except click.exceptions.Exit:
        return "help"
    except click.ClickException as error:
        return error.format_message()
    except SystemExit:
        return read[0]
    finally:
        os.environ.clear()
        os.environ.update(before)
    return "ended"


def spelled(settings: Settings) -> tuple[object, ...]:
    """Return everything that distinguishes settings, also the types of their values."""
    values = [functools.reduce(getattr, setting.key.split("."), settings) for setting in SETTINGS]
    types = [[type(part) for part in value] if isinstance(value, tuple) else type(value) for value in values]
    return settings, settings.given, types


@settings(max_examples=200 if EVERYTHING else 60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(starts())
@example(([], {}))
@example((["--driver.devices=0,1"], {"GPUGAUGE_METRICS_INCLUDE": "gpu_*, torch_*"}))
@example((["--sampling.stale-after-seconds=1"], {}))
@example((["--log.level=info", "--log.level=debug"], {}))
@example((["--kubernetes.pods"], {}))
def test_the_short_way_gives_what_the_full_way_gives(start: tuple[list[str], dict[str, str]]) -> None:
    found = plain_settings(*start)

    event("left to the full way" if found is None else f"{len(found.given)} settings")
    if found is not None:
        expected = full(*start)
        assert isinstance(expected, Settings), expected
        assert spelled(found) == spelled(expected)


@pytest.mark.everything
def test_a_usual_value_of_each_setting_is_plain_as_flag_and_as_variable() -> None:
    for setting in SETTINGS:
        value = ",".join(map(str, setting.default)) if setting.repeatable else setting.default_text
        if setting.default in (None, (), ""):
            value = "http://grafana.example/"
        flag = setting.flag if setting.annotation is bool else f"{setting.flag}={value}"

        for arguments, environ in (([flag], {}), ([], {setting.environment: value})):
            found, expected = plain_settings(arguments, environ), full(arguments, environ)
            assert found, setting.key
            assert found.given == {setting.key}
            assert isinstance(expected, Settings), setting.key
            assert spelled(found) == spelled(expected)


def test_what_the_short_way_does_not_know_is_left_to_the_full_way() -> None:
    left: list[tuple[list[str], dict[str, str]]] = [
        (["--config.file=/etc/gpugauge/config.yaml"], {}),
        ([], {"GPUGAUGE_CONFIG_FILE": "/etc/gpugauge/config.yaml"}),
        (["--help"], {}),
        ([], {"GPUGAUGE_LOG_LEVE": "info"}),
        ([], {"_GPUGAUGE_COMPLETE": "bash_source"}),
        ([], {"GPUGAUGE_KUBERNETES_PODS": "kubelet"}),
    ]
    assert [start for start in left if plain_settings(*start) is not None] == []
