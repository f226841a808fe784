"""What a person sees of a run: text as it comes, a card per tool call, warnings.

It only writes; keys, signals and exit codes are in `chat`. Text of models and tools is written as text: never as
markup, and without the control characters by which it could drive the terminal.
"""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from agentflow.events import (
    TERMINAL_TYPES,
    AgentEvent,
    CancelledEvent,
    DeltaEvent,
    FinalEvent,
    RollbackEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)

MAX_LINE = 300  # characters of a call's arguments
MAX_RESULT_LINES = 10
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


class Screen:
    """Shows the events of runs, one after the other. Raises `BrokenPipeError` when nobody reads any more.

    Reasoning is dimmed on a terminal and folded into one line elsewhere.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._channel = ""  # of the text whose line is still open
        self._folded = 0  # characters of reasoning that were not shown

    def show(self, event: AgentEvent) -> None:
        """Show one event."""
        if isinstance(event, DeltaEvent):
            if event.chain_id == event.run_id:
                self._text(event)
        elif (line := _line_of(event)) is not None:
            self.end_line()
            self._print(line.append("\n"))
        elif event.type in TERMINAL_TYPES:
            self.end_line()

    def end_line(self) -> None:
        """End the line of text that is open, so that something else can be written."""
        if self._folded:
            count, self._folded = self._folded, 0
            self._print(Text(f"(reasoning: {count} characters)\n", "dim"))
        if self._channel:
            self._channel = ""
            self._write("\n")

    def _text(self, event: DeltaEvent) -> None:
        if event.channel == "reasoning" and not self._console.is_terminal:
            self._folded += len(event.text)
            return
        if event.channel != self._channel:
            self.end_line()
        text = cleaned(event.text)
        if not text:
            return
        self._channel = event.channel
        if event.channel == "reasoning":
            self._print(Text(text, "dim"))
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        # Past rich, which would turn tabs into spaces.
        self._console.file.write(text)
        self._console.file.flush()

    def _print(self, text: Text) -> None:
        self._console.print(text, end="")


def _line_of(event: AgentEvent) -> Text | None:  # noqa: PLR0911  one return per kind of event
    """The line, or lines, that an event other than text is to a person."""
    match event:
        case ToolStartEvent():
            return Text(f"● {_call(event)}", "cyan")
        case ToolCompleteEvent():
            return Text(f"└ {_outcome(event)}", "green")
        case ToolErrorEvent():
            return Text(f"└ {_outcome(event)}", "red")
        case RollbackEvent():
            return Text(f"(void: the text of attempt {event.attempt}, {event.reason})", "yellow")
        case WarningEvent():
            return Text(f"warning: {one_line(event.message)}", "yellow")
        case FinalEvent() if event.finish_reason != "stop":
            return Text(f"(ended early: {event.finish_reason})", "yellow")
        case CancelledEvent():
            return Text(f"(cancelled: {event.reason})", "yellow")
    return None


def _call(event: ToolStartEvent) -> str:
    if event.arguments is None:
        arguments = event.raw_arguments
    else:
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event.arguments.items()
        )
    return f"{one_line(event.tool)}({one_line(arguments, MAX_LINE)})"


def _outcome(event: ToolCompleteEvent | ToolErrorEvent) -> str:
    head = f"{one_line(event.tool)} ({event.duration_ms:.0f} ms):"
    if isinstance(event, ToolErrorEvent):
        again = " (tried again)" if event.will_retry else ""
        return f"{head} {one_line(event.result, MAX_LINE)}{again}"
    lines = cleaned(event.result).removeprefix("[success]\n").splitlines()
    shown = [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in lines[:MAX_RESULT_LINES]]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown)} more lines")
    return f"{head} {shown[0]}" if len(shown) == 1 else "\n  ".join([head, *shown])
