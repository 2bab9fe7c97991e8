"""The application of `gpugauge top`, on textual: it shows the lines of `screen` and reacts to keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from gpugauge.status.model import Problem
from gpugauge.status.use import on_gpus, unhooked
from gpugauge.status.words import RUN_ADVICE, plural
from gpugauge.terminal import screen
from gpugauge.terminal.feed import Feed, LastStatus
from gpugauge.terminal.rows import Process, problem_words, safe

_REDRAW_SECONDS = 0.2
_STYLES = {"bad": "#ff6b6b", "poor": "#f2c94c", "good": "#6fcf6f"}  # readable on the dark background
_MIN_WIDTH = 60
_BORDER = 2  # cells at the sides of a list that are not its lines


class Top(App[None]):
    """GPUs, processes and details of one node."""

    TITLE = "gpugauge top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static, OptionList, Input, VerticalScroll { border: none; padding: 0; }
    #answer { padding: 0 1; }
    #problems { height: auto; max-height: 25%; padding: 0 1; }
    #order, #gpus-heading, #processes-heading { padding: 0 1; }
    #gpus { height: auto; max-height: 40%; }
    #processes { height: 1fr; }
    #details { height: auto; max-height: 35%; padding: 0 1; display: none; }
    #filter { height: 1; display: none; }
    OptionList > .option-list--option, OptionList > .option-list--option-highlighted { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("d", "details", "details"),
        Binding("space", "pause", "pause"),
        Binding("tab", "app.focus_next", "GPUs or processes", show=False),
        Binding("escape", "close", "close", show=False),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._answer: LastStatus | None = None
        self._sort, self._reverse, self._paused = "lost", False, False
        self._shown: dict[str, Process] = {}

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen from top to bottom."""
        yield Static("asking the daemon", id="answer", markup=False)
        with VerticalScroll(id="problems", can_focus=False):
            yield Static(id="problem-lines")
        yield Static(id="gpus-heading", markup=False)
        yield OptionList(id="gpus", markup=False)
        yield Static(id="order", markup=False)
        yield Static(id="processes-heading", markup=False)
        yield OptionList(id="processes", markup=False)
        with VerticalScroll(id="details", can_focus=False):
            yield Static(id="detail-lines")
        yield Input(placeholder="program, cause, owner, state or pid", id="filter", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask the daemon."""
        self._feed.start()
        self.set_interval(_REDRAW_SECONDS, self._follow)
        self.query_one("#processes").focus()

    def on_unmount(self) -> None:
        """End asking."""
        self._feed.stop()

    def on_resize(self) -> None:
        """Fit the lines to the new width."""
        self.call_after_refresh(self._draw)

    def on_input_changed(self) -> None:
        """Show the processes with the typed text."""
        self._draw()

    def on_input_submitted(self) -> None:
        """Return to the processes; the filter stays."""
        self.query_one("#processes").focus()

    def on_option_list_option_highlighted(self) -> None:
        """Show the details of the chosen line."""
        self._draw_details()

    def on_option_list_option_selected(self) -> None:
        """Open or close the details."""
        self.action_details()

    def action_sort(self) -> None:
        """Sort by the next value of SORTS."""
        names = list(screen.SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self._draw_sorted()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reverse = not self._reverse
        self._draw_sorted()

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    def action_details(self) -> None:
        """Open or close the details."""
        panel = self.query_one("#details")
        panel.display = not panel.display
        self._draw_details()

    def action_pause(self) -> None:
        """Keep what is shown, or follow the daemon again."""
        self._paused = not self._paused
        self._draw()

    def action_close(self) -> None:
        """Remove the filter and the details."""
        self.query_one("#filter", Input).value = ""
        for part in ("#filter", "#details"):
            self.query_one(part).display = False
        self.query_one("#processes").focus()
        self._draw()

    def _follow(self) -> None:
        if not self._paused and self._feed.latest is not self._answer:
            self._answer = self._feed.latest
            self._draw()

    def _draw(self) -> None:
        answer = self._answer
        if answer is None:
            return
        self._draw_answer(answer)
        if answer.status is None:
            return
        status, width = answer.status, max(_MIN_WIDTH, self.size.width - _BORDER)
        self._draw_list("gpus", *screen.gpu_lines(status, width - 1))
        shown = screen.chosen(status, self._sort, self._reverse, self.query_one("#filter", Input).value)
        self._shown = {process.facts.process: process for process in shown}
        order = f"{plural(len(shown), 'process', 'es')}, sorted by {self._sort}{', reversed' if self._reverse else ''}"
        self.query_one("#order", Static).update(Text(f"\n{order}", "dim"))
        self._draw_list("processes", *screen.process_lines(shown, status.timestamp, width - 1))
        self._draw_details()

    def _draw_answer(self, answer: LastStatus) -> None:
        lines, status = Text(no_wrap=False), answer.status
        problems = status.problems if status else ()
        if answer.trouble:
            lines.append(f"{safe(answer.trouble)} (trying again)\n", f"bold {_STYLES['bad']}")
        if status:
            simulated, style = "SIMULATED " if status.simulated else "", _STYLES.get(status.level, "")
            lines.append(f"{simulated}{safe(status.host)}: {safe(status.answer)}\n", f"bold {style}")
            if unhooked(on_gpus(status.gpus)) and not any(problem.kind == "unjudged" for problem in problems):
                lines.append(f"  → {RUN_ADVICE}\n", "dim")
        if self._paused:
            lines.append("paused, space continues\n", "bold")
        lines.rstrip()
        self.query_one("#answer", Static).update(lines)
        self.query_one("#problem-lines", Static).update(_problem_lines(problems))

    def _draw_list(self, name: str, heading: str, lines: list[screen.Line]) -> None:
        self.query_one(f"#{name}-heading", Static).update(Text(heading, "bold"))
        widget = self.query_one(f"#{name}", OptionList)
        before = _chosen_key(widget)
        scroll = widget.scroll_y
        widget.clear_options()
        widget.add_options(Option(Text(text, _STYLES.get(level, ""), no_wrap=True), key) for key, text, level in lines)
        keys = [key for key, _, _ in lines]
        if before in keys:
            widget.highlighted = keys.index(before)
            widget.scroll_to(y=scroll, animate=False)
        elif keys:
            widget.highlighted = 0

    def _draw_sorted(self) -> None:
        self._draw()
        self.call_after_refresh(self.query_one("#processes", OptionList).scroll_to_highlight)

    def _draw_details(self) -> None:
        status = self._answer.status if self._answer else None
        if status is None or not self.query_one("#details").display:
            return
        lines: list[str] = []
        if self.query_one("#gpus").has_focus:
            uuid = _chosen_key(self.query_one("#gpus", OptionList))
            found = (gpu for gpu in status.gpus if uuid in {gpu.uuid, *(device.uuid for device in gpu.mig)})
            lines = [line for gpu in found for line in screen.gpu_details(gpu)]
        elif process := self._shown.get(_chosen_key(self.query_one("#processes", OptionList)) or ""):
            lines = screen.process_details(process, status.timestamp, simulated=status.simulated)
        self.query_one("#detail-lines", Static).update(Text("\n".join(lines)))


def _chosen_key(widget: OptionList) -> str | None:
    return None if widget.highlighted is None else widget.get_option_at_index(widget.highlighted).id


def _problem_lines(problems: Sequence[Problem]) -> Text:
    lines = Text()
    for problem in problems:
        lines.append(f"{problem_words(problem)}\n", _STYLES["bad" if problem.grave else "poor"])
        if problem.advice:
            lines.append(f"  → {safe(problem.advice)}\n", "dim")
        if problem.gain_words:
            lines.append(f"    Expected: {safe(problem.gain_words)}.\n", "dim")
    lines.rstrip()
    return lines
