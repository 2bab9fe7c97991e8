"""Writes man pages and shell completions below a folder, from the commands of the gpugauge that this Python has."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from gpugauge import __version__
from gpugauge.cli.main import main as program

# Where each shell looks for what packages bring. zsh's folder is that of Debian; the other one is for RPM.
_COMPLETIONS = {
    "usr/share/bash-completion/completions/gpugauge": "bash",
    "usr/share/fish/vendor_completions.d/gpugauge.fish": "fish",
    "usr/share/zsh/vendor-completions/_gpugauge": "zsh",
    "usr/share/zsh/site-functions/_gpugauge": "zsh",
}


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command and of all below it that are not hidden."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from contexts(below, each, context)


def roff(text: str) -> str:
    """Return text that troff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\b\n", "")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in escaped.splitlines())


def page(context: click.Context) -> str:
    """Return the manual page of a command."""
    command, path = context.command, context.command_path
    name = path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{roff(name.upper())}" "1" "" "gpugauge {__version__}" "gpugauge"',
        *(".SH NAME", f"{roff(name)} \\- {roff(command.get_short_help_str(300))}"),
        *(".SH SYNOPSIS", f"\\fB{roff(path)}\\fR {roff(usage)}"),
    ]
    if command.help:
        paragraphs = [roff(part) for part in inspect.cleandoc(command.help).split("\n\n")]
        lines += [".SH DESCRIPTION", "\n.PP\n".join(paragraphs)]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        lines += [f".TP\n\\fB{roff(option)}\\fR\n{roff(help_text)}" for option, help_text in records]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for below in contexts(command, context.info_name or "", context.parent):
            if below.parent is not None and below.parent.command is command:
                title, text = below.command_path.replace(" ", "-"), below.command.get_short_help_str(300)
                lines.append(f".TP\n\\fB{roff(title)}\\fR(1)\n{roff(text)}")
    return "\n".join(lines) + "\n"


def write(tree: Path) -> None:
    """Write all files below `tree`."""
    texts = {
        f"usr/share/man/man1/{context.command_path.replace(' ', '-')}.1": page(context)
        for context in contexts(program, "gpugauge")
    }
    for path, shell in _COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None
        texts[path] = completion(program, {}, "gpugauge", "_GPUGAUGE_COMPLETE").source()
    for path, text in texts.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
