"""The commands and their flags; everything that is wrong with how they are called ends as one line and exit code 2.

What a run does with signals is in `chat`, how it looks in `screen`.
"""

import asyncio
import contextlib
import importlib.metadata
import importlib.resources
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from typer.exceptions import TyperException

from agentflow.cli.chat import EXIT_CANCELLED, EXIT_FAILED, EXIT_USAGE, converse, setup_fault
from agentflow.cli.dashboards import dashboards_app
from agentflow.cli.doctor import examine
from agentflow.cli.kept import Tools, kept_app
from agentflow.cli.models import check, overview, pull, served
from agentflow.cli.output import complain, discard, print_lines, stdout_alone, written_file
from agentflow.cli.prompts import Decision, Waiting, ask
from agentflow.cli.screen import PlainConsole, Screen, columns
from agentflow.cli.serving import serving_app
from agentflow.cli.tools import as_json as tools_as_json
from agentflow.cli.tools import lines as tool_lines
from agentflow.config import build_agent, load_tools, open_store, tool_modules
from agentflow.errors import AgentflowError, ConfigError, RequestError, StoreError
from agentflow.events import AgentEvent, encode, json_schema
from agentflow.models.routing import resolve_chain
from agentflow.settings import DEFAULT_FILE, Settings
from agentflow.tools.lint import lint_all
from agentflow.tools.registry import ToolRegistry

app = typer.Typer(
    help="LLM agents as observable chains of typed events.",
    add_completion=False,
    pretty_exceptions_show_locals=False,  # keys may stand in them
)
models_app = typer.Typer()
app.add_typer(models_app, name="models")
app.add_typer(kept_app)
app.add_typer(serving_app)
app.add_typer(dashboards_app, name="dashboards")

BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Address of an OpenAI-compatible server; the model is then one of its own.", show_default=False),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the program's arguments. Returns the exit code.

    0 the run ended `final`, 1 it failed, did not end in its time, or waited for a person where there is none, 2 wrong
    usage or configuration, or a provider that could not be reached or refused before it answered anything, or a store
    that cannot be used, or no output (one line on stderr), 130 it was cancelled. A pipe that nobody reads any more ends
    it without a word, with 130 or 1.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not _standard_streams():
        complain("standard output is closed: leave it open, or send it to a file")
        return EXIT_USAGE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no "é" is no reason to stop
    try:
        code: int | None = app(arguments or ["--help"], prog_name="agentflow", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        complain(f"{error.format_message()} (--help shows what there is)")
        return EXIT_USAGE
    except AgentflowError as error:
        fault = setup_fault(error.kind, str(error), None)
        complain(fault or str(error))
        return EXIT_USAGE if fault or isinstance(error, RequestError | StoreError) else EXIT_FAILED
    except OSError as error:
        discard(1)
        if isinstance(error, BrokenPipeError):
            return EXIT_FAILED
        complain(f"output cannot be written, or input not be read: {error}")
        return EXIT_USAGE
    return code or 0


def _standard_streams() -> bool:
    """Put nothing in the place of each standard stream that was closed. Returns whether there is an output.

    Else the next file or connection would get the stream's number, and what is printed.
    """
    output = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  open to the end
    return output


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        typer.echo(f"agentflow {importlib.metadata.version('agentflow-rx')}")
        raise typer.Exit


@app.callback()
def _agentflow(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True, metavar="")
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
    base_url: BaseUrl = None,
    tools: Tools = None,
    system: Annotated[str, typer.Option(help="Instructions for the model.", show_default=False)] = "",
    session: Annotated[
        str | None, typer.Option(help="Id of the session, which may be one of before.", show_default="a new one")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the events to standard output, one a line.", metavar="")
    ] = False,
) -> int:
    """Talk to a model that can call tools.

    Runs and sessions are kept: --session goes on with one, `agentflow sessions` and `agentflow runs` show them.
    Approvals and questions are put to you on a terminal; elsewhere, and with --json, they end the run with exit code 1.
    """
    screen = Screen(PlainConsole())
    show = _json_lines() if as_json else screen.show
    messages, interactive = _messages(message)
    settings = Settings()
    store = open_store(settings, default="sqlite")
    agent = build_agent(settings, model=model, base_url=base_url, tools=tools or (), instructions=system, store=store)

    def tell(line: str) -> None:
        screen.end_line()
        complain(line)

    def decide(waiting: Waiting) -> Decision:
        screen.end_line()
        return ask(waiting)

    attended = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    asked = decide if attended else None
    try:
        return converse(agent, messages, show, tell, store=store, ask=asked, session_id=session, patient=interactive)
    except BrokenPipeError:  # nobody reads any more, as after `| head`
        os._exit(EXIT_CANCELLED)  # the agent is closed; an ordinary end would try the pipe again, and complain


def _json_lines() -> Callable[[AgentEvent], None]:
    write = stdout_alone()
    return lambda event: write(encode(event))


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
    complain("/quit or Ctrl-D ends, Ctrl-C cancels an answer")
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
    else:
        _write(output, text)
    return 0


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    *,
    provider: Annotated[
        str | None, typer.Option(help="List the models that this provider's server has.", show_default=False)
    ] = None,
) -> int:
    """Show the known providers, whether each has its key, and the aliases."""
    if context.invoked_subcommand is None:
        settings = Settings()
        print_lines(overview(settings) if provider is None else asyncio.run(served(provider, settings)))
    return 0


@models_app.command("check")
def check_model(
    model: Annotated[
        str | None, typer.Argument(help="Model string; without it the one that `chat` would use.", show_default=False)
    ] = None,
    *,
    base_url: BaseUrl = None,
) -> int:
    """Ask a model for one token: is it there, does it take the key, how long does it take."""
    chosen = resolve_chain(model, Settings(), base_url=base_url)
    return asyncio.run(check(chosen, lambda line: print_lines([line]), complain))


@models_app.command("pull")
def pull_model() -> int:
    """Fetch the local model's file, if it is not there yet, and show where it is."""
    print_lines([str(pull())])
    return 0


@app.command("tools")
def show_tools(
    *,
    tools: Tools = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write them as JSON, with their schemas.", metavar="")
    ] = False,
    lint: Annotated[
        bool, typer.Option("--lint", help="Tell what will mislead a model; exit code 1 if anything does.", metavar="")
    ] = False,
) -> int:
    """Show the tools that `chat` would offer, and their parameters."""
    write = stdout_alone() if as_json else None
    registry = ToolRegistry(load_tools(tool_modules(Settings(), tools or ())))
    if lint:
        found = lint_all(registry)
        print_lines(found or ["nothing found"])
        return 1 if found else 0
    if write is not None:
        write(tools_as_json(registry).encode())
    else:
        print_lines(tool_lines(registry) or ["no tools"])
    return 0


@app.command()
def init(
    *,
    path: Annotated[Path, typer.Option(help="File to write.")] = Path(DEFAULT_FILE),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.", metavar="")] = False,
) -> int:
    """Write a settings file in which every key stands, with its default and what it means."""
    text = importlib.resources.files("agentflow.cli").joinpath(DEFAULT_FILE).read_text(encoding="utf-8")
    if os.path.exists(path) and not force:
        raise ConfigError(f"{str(path)!r} is there already: --force overwrites it, --path writes another")
    _write(path, text)
    print_lines([f"wrote {path}"])
    return 0


@app.command()
def doctor(
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Open no connection.", metavar="")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the findings as JSON.", metavar="")] = False,
) -> int:
    """Say whether a run can be started here, and what to do about what is missing; exit code 1 for a problem."""
    write = stdout_alone() if as_json else None
    findings = asyncio.run(examine(offline=offline))
    problems = sum(finding.level == "problem" for finding in findings)
    if write is not None:
        write(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False).encode())
    else:
        print_lines(columns([(finding.level, finding.subject, finding.text) for finding in findings]))
        print_lines([f"problems: {problems}" if problems else "no problem found: a run can be started"])
    return EXIT_FAILED if problems else 0


def _write(path: Path, text: str) -> None:
    with written_file(path) as file:
        file.write(text.encode())
