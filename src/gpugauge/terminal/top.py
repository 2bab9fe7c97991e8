"""The application of `gpugauge top`, on textual: it shows the lines of `screen` and reacts to keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from gpugauge.status.model import WASTE, GpuStatus, Problem, Status
from gpugauge.status.words import plural
from gpugauge.terminal import screen
from gpugauge.terminal.columns import wrap
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.reply import Feed, LastStatus
from gpugauge.terminal.rows import Process, problem_words, safe
from gpugauge.terminal.style import LEVELS, RESET

_REDRAW_SECONDS = 0.2
_STYLES = {"bad": "#ff6b6b", "poor": "#ffb454", "good": "#6fcf6f"}  # readable on the dark background
_MIN_WIDTH = 60
_ANSWER_ROWS = 3
_LARGE_ROWS = 30  # of a terminal where the answer has a row more, and also the usual order of the processes is said
_FEW_GPUS = 2  # of which each has its line also beside a repair
_STEP = re.compile(r" *\d+\. ")
_FREE_ROWS = 20  # the rows of the rest, and of details that are worth opening unasked


class Top(App[None]):
    """Problems, GPUs, processes and details of one node."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    Static, OptionList, Input, VerticalScroll { border: none; padding: 0; }
    OptionList { text-wrap: nowrap; text-overflow: ellipsis; }
    OptionList, VerticalScroll { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    #answer, #worst, #more, #gpus-heading, #processes-heading, #details, #below { padding: 0 1; }
    #details { background: $boost; }
    #filter { height: 1; display: none; }
    OptionList > .option-list--option, OptionList > .option-list--option-highlighted { padding: 0 1; }
    Toast { width: auto; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort", "sort", tooltip=f"by the next of {', '.join(screen.SORTS)}"),
        Binding("r", "reverse", "reverse", tooltip="the order"),
        Binding("slash", "filter", "filter", key_display="/", tooltip="processes by a text"),
        Binding("p", "problems", "problems", tooltip="all, each with its advice"),
        Binding("d", "details", "details", tooltip="of the chosen line; also Enter"),
        Binding("space", "pause", "pause"),
        Binding("question_mark", "help", "keys", key_display="?"),
        Binding("tab", "app.focus_next", "next list, or the details", show=False),
        Binding("pageup", "page('up')", "page up of the details, or the list", show=False, priority=True),
        Binding("pagedown", "page('down')", "page down", show=False, priority=True),
        Binding("escape", "close", "close filter, details and this help", show=False),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._answer: LastStatus | None = None
        self._status: Status | None = None  # the part of it with the text of the filter
        self._sort, self._reverse, self._paused = "lost", False, False
        self._shown: dict[str, Process] = {}
        self._list, self._width, self._head_rows = "processes", _MIN_WIDTH, 1
        self._steps: list[tuple[str, str]] = []  # of the repair, with their levels
        self._opened: bool | None = None  # until the user opens or closes the details
        self._all = False  # whether the details are all problems
        self._headings: dict[str, str] = {}  # by the name of the list
        self._detail_rows = (0, 0)  # those shown, and all

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen from top to bottom."""
        yield Static("asking the daemon", id="answer", markup=False)
        yield Static(id="worst", markup=False)
        yield OptionList(id="problems", markup=False)
        yield OptionList(id="repair", markup=False)
        yield Static(id="more", markup=False)
        yield Static(id="gpus-heading", markup=False)
        yield OptionList(id="gpus", markup=False)
        yield Static(id="processes-heading", markup=False)
        yield OptionList(id="processes", markup=False)
        with VerticalScroll(id="details"):
            yield Static(id="detail-lines")
        yield Static(id="below", markup=False)
        yield Input(placeholder="program, cause, owner, state or pid", id="filter", compact=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask the daemon."""
        self._feed.start()
        self.watch(self.query_one("#details"), "scroll_y", self._draw_below, init=False)
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
        self._arrange()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show the details of the line that is chosen in another list."""
        if isinstance(event.widget, OptionList):
            self._list = str(event.widget.id)
            self._arrange()

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
        self._arrange()

    def action_details(self) -> None:
        """Open or close the details."""
        self._opened, self._all = self._all or not self.query_one("#details").display, False
        self._draw_sorted()

    def action_problems(self) -> None:
        """List all problems with their advice, or no longer."""
        self._all = not self._all
        self._opened = True if self._all else None
        self._draw()
        self.query_one("#details" if self._all else "#processes").focus()
        self.query_one("#details").scroll_home(animate=False)

    def action_pause(self) -> None:
        """Keep what is shown, or follow the daemon again."""
        self._paused = not self._paused
        self._draw()

    def action_help(self) -> None:
        """Show all keys for a while, or no longer."""
        if self.screen.query("Toast"):
            self.clear_notifications()
            return
        keys = [key for key in self.BINDINGS if isinstance(key, Binding)]
        self.notify("\n".join(f"{k.key_display or k.key:>6}  {k.description} {k.tooltip}" for k in keys), timeout=30.0)

    def action_close(self) -> None:
        """Remove the filter, the details and the keys."""
        self.query_one("#filter", Input).value = ""
        self.query_one("#filter").display = self._opened = self._all = False
        self.clear_notifications()
        self.query_one("#processes").focus()
        self._draw()

    async def action_page(self, way: str) -> None:
        """Turn a page of the details where they do not fit, else of the list."""
        details = self.query_one("#details")
        part = details if details.display and details.max_scroll_y else self.query_one(f"#{self._list}")
        await self.run_action(f"page_{way}", part)

    def _follow(self) -> None:
        if not self._paused and self._feed.latest is not self._answer:
            self._answer = self._feed.latest
            self._draw()

    def _draw(self) -> None:
        answer, text = self._answer, self.query_one("#filter", Input).value
        self._width = width = max(_MIN_WIDTH, self.size.width) - 3  # blanks at the sides, and the scrollbar
        if answer and answer.status and text:
            answer = replace(answer, status=screen.filtered(answer.status, text))
        self._status = status = answer.status if answer else None
        found = status.problems if status else ()
        self._steps = [line for problem in found if problem.steps for line in screen.problem_lines(problem, width)]
        if answer:
            self._draw_answer(answer)
        if status is None:
            return
        problems = [(str(n), p) for n, p in enumerate(found) if not p.steps][1:]
        self._draw_list("problems", "", [(n, problem_words(replace(p, since_words=None)), p.tone) for n, p in problems])
        self._draw_list("repair", "", [(str(n), *line) for n, line in enumerate(self._steps)])
        self._draw_list("gpus", *screen.gpu_lines(status, width))
        shown = screen.chosen(status, self._sort, self._reverse, text)
        self._shown = {process.facts.process: process for process in shown}
        heading, lines = screen.process_lines(shown, status.timestamp, width)
        count = sum(len(process.alike) or 1 for process in shown)
        order = f"{plural(count, 'process', 'es')}, sorted by {self._sort}{', reversed' if self._reverse else ''}"
        order += "; paused: space continues" if self._paused else ""
        self._draw_list("processes", f"{order}\n{heading}" if self._says_order() else heading, lines)
        self._arrange()

    def _says_order(self) -> bool:
        unusual = (self._sort, self._reverse, self._paused) != ("lost", False, False)
        return unusual or self.size.height >= _LARGE_ROWS

    def _least(self) -> dict[str, int]:
        """Return the rows that the lists have at least. Beside a repair one has the states of all GPUs, if many."""
        few = self._status is not None and len(self._status.gpus) <= _FEW_GPUS and self._opened is None
        return {"processes": 1 + few, "gpus": 3 if few else 1} if self._steps else {"processes": 3, "gpus": 3}

    def _draw_answer(self, answer: LastStatus) -> None:
        """Draw the answer and the most severe problem."""
        status, lines, worst, most = answer.status, [], [], 0
        rows = _ANSWER_ROWS - (self.size.height < _LARGE_ROWS)
        if answer.trouble:
            lines = [(line, "bad") for line in wrap(f"{safe(answer.trouble)} (trying again)", self._width)]
        if status:
            words = f"{'SIMULATED ' if status.simulated else ''}{safe(status.host)}: {safe(status.answer)}"
            lines += [(line, status.tone) for line in wrap(words, self._width)]
            problems = [problem for problem in status.problems if not problem.steps]
            space = self.size.height - len(lines[:rows]) - len(self._steps) - len(problems[1:2]) - 2
            most = max(3, space - self._says_order() - sum(self._least().values()))
            if problems and not self._all:
                # What to do comes before who it is, which the lists have, and before what that gains.
                others = space - len(status.gpus) - 1 - self._least()["processes"] - self._says_order()
                less = replace(problems[0], since_words=None, detail=None)
                for problem in (problems[0], less, replace(less, gain_words=None)):
                    worst = screen.problem_lines(problem, self._width)
                    if len(worst) <= others:
                        break
        self._head_rows = 0
        most = 1 if self._opened else most
        for name, found, height in (("answer", lines, rows), ("worst", worst, most)):
            shown = screen.clipped(found, height, self._width)
            self._head_rows += len(shown)
            text = Text("\n").join(_styled(*line) for line in shown)
            if name == "answer":
                text.stylize("bold")
            part = self.query_one(f"#{name}", Static)
            part.display = bool(shown)
            part.update(text)

    def _draw_list(self, name: str, heading: str, lines: list[screen.Line]) -> None:
        self._headings[name] = heading
        widget = self.query_one(f"#{name}", OptionList)
        before = _chosen_key(widget)
        scroll = widget.scroll_y
        widget.clear_options()
        widget.add_options(Option(_styled(text, level), key) for key, text, level in lines)
        keys = [key for key, _, _ in lines]
        if before in keys:
            widget.highlighted = keys.index(before)
            widget.scroll_to(y=scroll, animate=False)
        elif keys:
            widget.highlighted = 0

    def _draw_sorted(self) -> None:
        self._draw()
        self.call_after_refresh(self.query_one("#processes", OptionList).scroll_to_highlight)

    def _arrange(self) -> None:
        """Fit the parts of the screen to what they show, and show the details of the chosen line."""
        status = self._status
        wanted = {str(found.id): found.option_count for found in self.query(OptionList)}
        if status is None or "processes" not in wanted:  # the lists go one by one when the program ends
            return
        wanted["processes"] = max(1, wanted["processes"])  # a list that is hidden has no focus
        free = self.size.height - sum(wanted.values()) >= _FREE_ROWS
        wanted["gpus"] += bool(wanted["gpus"])  # their heading
        details = self._details(status) if self._opened or (free and self._opened is None) else []
        if self._all:
            wanted = dict.fromkeys(wanted, 0)
        wanted["details"] = len(details)
        heading = 0 if self._all else 1 + self._says_order()
        space = self.size.height - self._head_rows - heading - self.query_one("#filter").display - 1  # the keys
        given = {name: min(wanted[name], rows) for name, rows in self._least().items()}
        given["more"] = int(bool(wanted["problems"] or wanted["repair"]))  # their number, where not all have a line
        if self._opened:
            given["details"] = min(wanted["details"], max(space // 2, space - sum(given.values())))
        for name in ("repair", "gpus", "problems", "processes", "details"):
            less = given.get(name, 0)
            given[name] = less + max(0, min(wanted[name] - less, space - sum(given.values())))
            if name == "problems" and given[name] + 1 >= wanted[name] and given["repair"] == wanted["repair"]:
                given |= {"problems": wanted[name], "more": 0}
        self.query_one("#more", Static).update(
            Text(_more(status.problems, given["problems"], self._steps[given["repair"] :]), "bold")
        )
        in_short = given["gpus"] == 1
        given["gpus"] = max(0, given["gpus"] - 1)
        for name, keys in (("gpus", "Shift+Tab, ↓"), ("processes", "↓")):
            head = self.query_one(f"#{name}-heading", Static)
            short = name == "gpus" and in_short
            head.display = short or given[name] > 0
            count = self.query_one(f"#{name}", OptionList).option_count
            note = f"{given[name]} of {plural(count, 'line')}: {keys}" if given[name] < count and not short else ""
            line = (
                screen.states(status, self._width) if short else screen.noted(self._headings[name], note, self._width)
            )
            head.update(Text(line, "bold"))
        given["below"] = int(1 < given["details"] < wanted["details"])
        given["details"] -= given["below"]
        for name, rows in given.items():
            part = self.query_one(f"#{name}")
            part.display, part.styles.height = rows > 0, rows
        self._detail_rows = (given["details"], len(details))
        self.query_one("#detail-lines", Static).update(Text.from_ansi("\n".join(details)))
        self._draw_below()

    def _draw_below(self) -> None:
        """Say how many lines of the details are below those that are shown."""
        rows, count = self._detail_rows
        more = count - rows - round(self.query_one("#details").scroll_y)
        words = f"… {plural(more, 'more line')}: PageDown" if more > 0 else "the end: PageUp"
        self.query_one("#below", Static).update(Text(words, "bold"))

    def _details(self, status: Status) -> list[str]:
        """Return what is known of the chosen line; of a process, as `gpugauge doctor` prints it, and of its GPUs, of
        which those with faults come first.
        """
        key = _chosen_key(self.query_one(f"#{self._list}", OptionList)) or ""
        process, gpu = self._shown.get(key), screen.gpu_of(status, key)
        one = [status.problems[int(key)]] if self._list == "problems" and key else []
        lines = [
            f"{LEVELS.get(level, '')}{line}{RESET}"
            for problem in (status.problems if self._all else one)
            for line, level in screen.problem_lines(problem, self._width)
        ]
        if self._all:
            return lines
        gpus = process.gpus if process else [gpu] if gpu else []
        faulty = [each for each in gpus if each.faults]
        lines += self._gpu_details(faulty)
        if process:
            pids = [f"sums of pids {process.pids}"] if process.alike else []
            lines += [*pids, *filter(None, process_screen(process, status.timestamp, self._width, colour=True))]
        return lines + self._gpu_details(each for each in gpus if each not in faulty)

    def _gpu_details(self, gpus: Iterable[GpuStatus]) -> list[str]:
        return [line for gpu in gpus for fact in screen.gpu_details(gpu) for line in wrap(fact, self._width, "", "  ")]


def _more(problems: Sequence[Problem], listed: int, steps: Sequence[tuple[str, str]]) -> str:
    """Return how many problems have no line, beside the first and those of the list, and how many `steps` of the repair
    are hidden, or a part of them.
    """
    begun = [bool(_STEP.match(line)) for line, _ in steps]
    later = sum(begun) + (begun[:1] == [False])  # a step of which a part is hidden
    hidden = [problem for problem in problems if not problem.steps][1 + listed :]
    faults = sum(problem.kind not in WASTE for problem in hidden)
    count = plural(len(hidden), "more fault" if faults == len(hidden) else "more problem")
    words = f"{count}{f', {faults} of them faults' if 0 < faults < len(hidden) else ''}" if hidden else ""
    return f"{', '.join(filter(None, (plural(later, 'more step') if later else '', words)))}: p lists all"


def _chosen_key(widget: OptionList) -> str | None:
    return None if widget.highlighted is None else widget.get_option_at_index(widget.highlighted).id


def _styled(text: str, level: str) -> Text:
    return Text(text, _STYLES.get(level, level))
