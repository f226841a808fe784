"""What a person sees of a run: text as it comes, a card per tool call and its progress, warnings.

What an agent below another one does stands further to the right.

It only writes; keys, signals and exit codes are in `chat`. Text of models and tools is written as text: never as
markup, and without the control characters by which it could drive the terminal.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from agentflow.events import (
    TERMINAL_TYPES,
    AgentEvent,
    CancelledEvent,
    DeltaEvent,
    FinalEvent,
    ModelStartEvent,
    RollbackEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)

MAX_LINE = 300  # characters of a call's arguments
MAX_RESULT_LINES = 10
_MILD = frozenset({"degraded", "rejected", "amended", "cancelled"})  # ends of calls that are nobody's fault
# Warnings whose message is what the model is told.
_FOR_PEOPLE = {
    "unsupported_success": "the last tool calls have failed, and the answer did not say so; it is asked for once more",
    "output_invalid": "the answer does not have the form that was asked for; it is asked for once more",
}
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class PlainConsole(Console):
    """A rich console that writes lines as long as they are, and leaves a closed pipe to its caller.

    No styles where nobody looks: not into a pipe, not with `NO_COLOR`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)
        if self.no_color:  # rich itself would still write bold and dim
            self._color_system = None

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError`; rich would end the program."""
        raise  # noqa: PLE0704  rich calls this where it has caught the error


def cleaned(text: str) -> str:
    """`text` without control characters but line ends and tabs."""
    return text.translate(_CONTROLS)


def one_line(text: str, most: int | None = None) -> str:
    """`text` cleaned, in one line, cut to `most` characters."""
    line = " ".join(cleaned(text).split())
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    cleaned_rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cleaned_rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cleaned_rows]


class Screen:
    """Shows the events of runs, one after the other. Raises `BrokenPipeError` when nobody reads any more.

    Reasoning and the output of running tools are dimmed. A tool's progress is one line that changes; where nobody
    watches, only its last state is written, and of reasoning only how much there was.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._channel = ""  # of the text whose line is still open: "answer", "reasoning", or the id of a call
        self._folded = 0  # characters of reasoning that were not shown
        self._progress = ""  # the last state of what goes on
        self._said = False  # whether the model's attempt has shown any text

    def show(self, event: AgentEvent) -> None:
        """Show one event."""
        match event:
            case DeltaEvent():
                if event.chain_id == event.run_id:
                    self._delta(event)
            case ToolDeltaEvent():
                self._tool_delta(event)
            case ModelStartEvent():
                self._said = False
            case RollbackEvent() if not self._said:
                pass  # of an attempt without text the warning before this has told all
            case _:
                self._line(event)

    def end_line(self) -> None:
        """End the line of text that is open, so that something else can be written."""
        if self._folded:
            count, self._folded = self._folded, 0
            self._print(Text(f"(reasoning: {count} characters)\n", "dim"))
        if self._progress:
            line, self._progress = self._progress, ""
            self._print(Text("\n" if self._console.is_terminal else f"{line}\n", "dim"))
        if self._channel:
            self._channel = ""
            self._write("\n")

    def _line(self, event: AgentEvent) -> None:
        line = _line_of(event)
        if line is not None:
            text, style = line
            self.end_line()
            self._print(Text(f"{textwrap.indent(text, _indent(event))}\n", style))
        elif event.type in TERMINAL_TYPES:
            self.end_line()

    def _delta(self, event: DeltaEvent) -> None:
        self._said = True
        if event.channel == "reasoning" and not self._console.is_terminal:
            self._folded += len(event.text)
        else:
            self._text(event.text, event.channel, "")

    def _tool_delta(self, event: ToolDeltaEvent) -> None:
        progress = _progress(event)
        if progress is None:
            data = event.data
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            self._text(text, event.call_id, _indent(event))
            return
        if not self._progress:
            self.end_line()
        self._progress = progress
        if self._console.is_terminal:  # over the last one, and no longer than the line: else it would stay above
            self._write("\r")
            self._print(Text(set_cell_size(progress, self._console.width - 1), "dim"))

    def _text(self, text: str, channel: str, indent: str) -> None:
        if channel != self._channel or self._progress:
            self.end_line()
        text = cleaned(text)
        if not text:
            return
        text = f"{'' if self._channel else indent}{text}".replace("\n", f"\n{indent}")
        self._channel = channel
        if channel == "answer":
            self._write(text)
        else:
            self._print(Text(text, "dim"))

    def _write(self, text: str) -> None:
        # Past rich, which would turn tabs into spaces.
        self._console.file.write(text)
        self._console.file.flush()

    def _print(self, text: Text) -> None:
        self._console.print(text, end="")


def call_line(tool: str, arguments: Mapping[str, Any] | None, raw_arguments: str = "") -> str:
    """A call as one line, cut where it is too long; in the model's words where they are no object."""
    shown = raw_arguments
    if arguments is not None:
        shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{one_line(tool)}({one_line(shown, MAX_LINE)})"


def _indent(event: AgentEvent) -> str:
    return "  " * (len(event.path) - 1)


def _progress(event: ToolDeltaEvent) -> str | None:
    """The line for a tool's progress; None for any other output."""
    match event.data:
        case {"done": int() | float() as done, "total": int() | float() as total, **rest}:
            state = f"{one_line(event.tool)}: {done:g} of {total:g} {one_line(str(rest.get('message') or ''))}".rstrip()
            return f"{_indent(event)}{state}"
    return None


def _line_of(event: AgentEvent) -> tuple[str, str] | None:  # noqa: PLR0911  one return per kind of event
    """The line, or lines, that an event other than text is to a person, and their style."""
    match event:
        case ToolStartEvent():
            again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
            return f"● {call_line(event.tool, event.arguments, event.raw_arguments)}{again}", "cyan"
        case ToolCompleteEvent():
            return f"└ {_result(event)}", "green"
        case ToolErrorEvent():
            return f"└ {_error(event)}", "yellow" if event.status in _MILD else "red"
        case RollbackEvent():
            return f"(void: the text of attempt {event.attempt}, {event.reason})", "yellow"
        case WarningEvent():
            return f"warning: {one_line(_FOR_PEOPLE.get(event.code, event.message))}{_then(event)}", "yellow"
        case FinalEvent() if event.finish_reason != "stop":
            return f"(ended early: {event.finish_reason})", "yellow"
        case CancelledEvent():
            return f"(cancelled: {event.reason})", "yellow"
    return None


def _then(event: WarningEvent) -> str:
    """What follows an attempt that failed."""
    match event.data:
        case {"next": "retry", "wait_seconds": int() | float() as wait}:
            return f"; tried again in {wait:.1f} s"
        case {"next": "fallback"}:
            return "; the next model is asked"
    return ""


def _result(event: ToolCompleteEvent) -> str:
    how = "reused" if event.reused_from is not None else f"{event.duration_ms:.0f} ms"
    head = f"{one_line(event.tool)} ({how}):"
    lines = cleaned(event.result).removeprefix("[success]\n").splitlines()
    shown = [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in lines[:MAX_RESULT_LINES]]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown)} more lines")
    return f"{head} {shown[0]}" if len(shown) == 1 else "\n  ".join([head, *shown])


def _error(event: ToolErrorEvent) -> str:
    again = " (tried again)" if event.will_retry else ""
    return f"{one_line(event.tool)} ({event.duration_ms:.0f} ms): {one_line(event.result, MAX_LINE)}{again}"
