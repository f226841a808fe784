"""The commands and their flags; everything that is wrong with how they are called ends as one line and exit code 2.

What a run does with signals is in `chat`, how it looks in `screen`.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from typer.exceptions import TyperException

from agentflow.cli.chat import EXIT_CANCELLED, EXIT_FAILED, EXIT_USAGE, converse
from agentflow.cli.screen import PlainConsole, Screen, one_line
from agentflow.config import NO_TOOLS, build_agent
from agentflow.errors import AgentflowError, ConfigError, RequestError
from agentflow.events import AgentEvent, encode, json_schema
from agentflow.models.local_files import ensure_model
from agentflow.settings import Settings

app = typer.Typer(help="LLM agents as observable chains of typed events.", add_completion=False)
models_app = typer.Typer(help="The local model.")
app.add_typer(models_app, name="models")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the program's arguments. Returns the exit code.

    0 the run ended `final`, 1 it failed, 2 wrong usage or configuration (one line on stderr), 130 it was cancelled.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no "é" is no reason to stop
    try:
        code: int | None = app(arguments or ["--help"], prog_name="agentflow", standalone_mode=False)
    except TyperException as error:
        _complain(f"{error.format_message()} (--help shows what there is)")
        return EXIT_USAGE
    except AgentflowError as error:
        _complain(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError | RequestError) else EXIT_FAILED
    return code or 0


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        typer.echo(f"agentflow {importlib.metadata.version('agentflow-rx')}")
        raise typer.Exit


@app.callback()
def _agentflow(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """LLM agents as observable chains of typed events."""


@app.command()
def chat(
    message: Annotated[
        str | None,
        typer.Argument(
            help="What to say; '-' reads all of standard input. Without it each line of standard input is a message"
            " of one session, and on a terminal you are asked.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Model string such as openai/gpt-5-mini.", show_default=False)
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="Address of an OpenAI-compatible server; --model is then its model.", show_default=False),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PKG.MODULE",
            help=f"Module whose tools are offered; may be given several times; {NO_TOOLS!r} offers none.",
            show_default="calculator and current_time",
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="Instructions for the model.", show_default=False)] = "",
    session: Annotated[str | None, typer.Option(help="Id of the session.", show_default="a new one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the events to standard output, one a line.")] = False,
) -> int:
    """Talk to a model that can call tools."""
    write_event = _json_writer() if as_json else None
    messages, interactive = _messages(message)
    agent = build_agent(Settings(), model=model, base_url=base_url, tools=tools or (), instructions=system)
    screen = Screen(PlainConsole())

    def complain(line: str) -> None:
        screen.end_line()
        _complain(line)

    try:
        return converse(agent, messages, write_event or screen.show, complain, session_id=session, patient=interactive)
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os._exit(EXIT_CANCELLED)  # the agent is closed; an ordinary end would try the pipe again, and complain


def _json_writer() -> Callable[[AgentEvent], None]:
    """Writes events to standard output, and lets nothing else get there: tools print, and so do their processes."""
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def write(event: AgentEvent) -> None:
        stdout.write(encode(event) + b"\n")
        stdout.flush()

    return write


def _messages(message: str | None) -> tuple[Iterator[str], bool]:
    """The user's messages, and whether a person is typing them."""
    if message is None and sys.stdin.isatty():
        return _typed(), True
    if message is None:
        lines = (line.strip() for line in _input_lines())
        return _some(line for line in lines if line), False
    if message == "-":
        message = "".join(_input_lines())
    return _some(text for text in [message] if text.strip()), False


def _input_lines() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield line.decode("utf-8", "replace")


def _some(messages: Iterator[str]) -> Iterator[str]:
    """The messages. Raises `RequestError` if there is none."""
    first = next(messages, None)
    if first is None:
        raise RequestError("there is no message: give MESSAGE, or one per line on standard input")
    yield first
    yield from messages


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  editing and history, where the platform has it
    _complain("/quit or Ctrl-D ends, Ctrl-C cancels an answer")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            sys.stderr.write("\n")
            return
        if line == "/quit":
            return
        if line:
            yield line


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option(help="File to write to.", show_default="standard output")] = None,
) -> int:
    """Show the JSON Schema of the events."""
    text = json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(output)!r} cannot be written: {error}") from error
    return 0


@models_app.callback()
def _models() -> None:
    """The local model."""  # a callback keeps `pull` a command of its own while it is the only one


@models_app.command()
def pull() -> int:
    """Fetch the local model's file, if it is not there yet, and show where it is."""
    columns = (TextColumn("fetching the local model"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    task = progress.add_task("", total=None)
    with contextlib.ExitStack() as shown:

        def show(done: int, total: int) -> None:
            if not progress.live.is_started:  # nothing to show where nothing is fetched
                shown.enter_context(progress)
            progress.update(task, completed=done, total=total)

        path = ensure_model(show)
    typer.echo(path)
    return 0


def _complain(line: str) -> None:
    sys.stderr.write(f"agentflow: {one_line(line)}\n")
    sys.stderr.flush()
