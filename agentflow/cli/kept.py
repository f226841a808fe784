"""The commands about what is kept in the store, and their flags: sessions, runs, events, replay, facts.

What they do is in a module for each; what the other commands are is in `commands`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from agentflow.cli import facts, runs, sessions
from agentflow.cli.chat import EXIT_CANCELLED
from agentflow.cli.replay import limits_of, replay_file, replay_run
from agentflow.config import NO_TOOLS, load_tools, open_store, tool_modules
from agentflow.errors import ConfigError, RequestError
from agentflow.settings import Settings
from agentflow.stores.base import SessionKey, Store
from agentflow.tools.registry import ToolRegistry

kept_app = typer.Typer()
sessions_app = typer.Typer()
facts_app = typer.Typer()
kept_app.add_typer(sessions_app, name="sessions")
kept_app.add_typer(facts_app, name="facts")

Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PKG.MODULE",
        help=f"Module whose tools are offered; may be given several times; {NO_TOOLS!r} offers none.",
        show_default="calculator and current_time",
    ),
]
SessionUser: TypeAlias = Annotated[
    str | None, typer.Option(help="Whose sessions.", show_default="those without a user")
]
FactUser: TypeAlias = Annotated[str | None, typer.Option(help="Whose facts.", show_default=False)]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.", metavar="")]


@dataclass(frozen=True)
class _Flags:
    """What was said before the name of a command in a group counts for it too."""

    user: str | None
    as_json: bool


def _with_store(work: Callable[[Store], Awaitable[int]]) -> int:
    """The exit code of `work`, done with the store that `chat` uses. Ctrl-C ends it without a word."""
    settings = Settings()
    if settings.memory.store == "in_memory":
        raise ConfigError("memory.store is 'in_memory', which keeps nothing: set it to 'sqlite' or 'redis'")

    async def run() -> int:
        store = open_store(settings, default="sqlite")
        try:
            return await work(store)
        finally:
            await store.aclose()

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        return EXIT_CANCELLED


# -- sessions --------------------------------------------------------------------------------------------------


@sessions_app.callback(invoke_without_command=True)
def _sessions(context: typer.Context, *, user: SessionUser = None, as_json: AsJson = False) -> int:
    """Show the sessions that are kept, the newest first, or do one of these."""
    context.obj = _Flags(user, as_json)
    if context.invoked_subcommand is not None:
        return 0
    return _with_store(lambda store: sessions.show_all(store, user, as_json=as_json))


@sessions_app.command("list")
def _list_sessions(context: typer.Context, *, user: SessionUser = None, as_json: AsJson = False) -> int:
    """Show the sessions, the newest first."""
    flags: _Flags = context.obj
    whose, json = user or flags.user, as_json or flags.as_json
    return _with_store(lambda store: sessions.show_all(store, whose, as_json=json))


SessionId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the session.")]


@sessions_app.command("show")
def _show_session(
    context: typer.Context, session: SessionId, *, user: SessionUser = None, as_json: AsJson = False
) -> int:
    """Show what was said in a session."""
    flags: _Flags = context.obj
    key, json = SessionKey(session, user or flags.user), as_json or flags.as_json
    return _with_store(lambda store: sessions.show(store, key, as_json=json))


@sessions_app.command("export")
def _export_session(
    context: typer.Context,
    session: SessionId,
    *,
    user: SessionUser = None,
    output: Annotated[Path | None, typer.Option(help="File to write to.", show_default="standard output")] = None,
) -> int:
    """Write a session as JSON: a line on the session, then one for each of its turns."""
    key = SessionKey(session, user or context.obj.user)
    return _with_store(lambda store: sessions.export(store, key, output))


@sessions_app.command("delete")
def _delete_session(context: typer.Context, session: SessionId, *, user: SessionUser = None) -> int:
    """Delete a session with its turns, summaries and finished runs; a run that goes on is asked to end."""
    key = SessionKey(session, user or context.obj.user)
    return _with_store(lambda store: sessions.delete(store, key))


# -- runs ------------------------------------------------------------------------------------------------------


@kept_app.command("runs")
def _runs(
    *,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.", metavar="")] = False,
    as_json: AsJson = False,
) -> int:
    """Show the runs, the newest first."""
    return _with_store(lambda store: runs.show_all(store, only_open=only_open, as_json=as_json))


@kept_app.command("events")
def _events(
    run: Annotated[str, typer.Argument(help="Id of the run.")],
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as long as the run does.", metavar="")] = False,
    after: Annotated[int, typer.Option(help="Begin behind the event of this number.", min=0)] = 0,
) -> int:
    """Write the events of a run, one JSON object a line."""
    return _with_store(lambda store: runs.events(store, run, after, follow=follow))


@kept_app.command("replay")
def _replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="Id of a run, or a file of events as `events` and `chat --json` write it."
        ),
    ],
    *,
    tools: Tools = None,
) -> int:
    """Say whether today's version would decide as a log shows, and where not; exit code 1 if not.

    The limits are those that `chat` would have here with these tools: of its own limits a log says nothing.
    """
    settings = Settings()
    limits = limits_of(settings, ToolRegistry(load_tools(tool_modules(settings, tools or ()))))
    if Path(source).is_file():
        return replay_file(Path(source), limits)
    return _with_store(lambda store: replay_run(store, source, limits))


# -- facts -----------------------------------------------------------------------------------------------------


def _owner(context: typer.Context, user: str | None) -> str:
    owner = user or (context.obj.user if context.obj is not None else None)
    if not owner:
        raise RequestError("facts are a user's: say whose with --user")
    return owner


@facts_app.callback(invoke_without_command=True)
def _facts(context: typer.Context, *, user: FactUser = None, as_json: AsJson = False) -> int:
    """Show what is known of a user, or do one of these."""
    context.obj = _Flags(user, as_json)
    if context.invoked_subcommand is not None:
        return 0
    owner = _owner(context, user)
    return _with_store(lambda store: facts.show_all(store, owner, as_json=as_json))


@facts_app.command("list")
def _list_facts(context: typer.Context, *, user: FactUser = None, as_json: AsJson = False) -> int:
    """Show what is known of a user."""
    owner, json = _owner(context, user), as_json or context.obj.as_json
    return _with_store(lambda store: facts.show_all(store, owner, as_json=json))


FactId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the fact.")]


@facts_app.command("correct")
def _correct_fact(
    context: typer.Context,
    fact: FactId,
    text: Annotated[str, typer.Argument(help="What is right instead.")],
    *,
    user: FactUser = None,
) -> int:
    """Put another text in a fact's place; the old one is kept as superseded."""
    owner = _owner(context, user)
    return _with_store(lambda store: facts.correct(store, owner, fact, text))


@facts_app.command("delete")
def _delete_fact(context: typer.Context, fact: FactId, *, user: FactUser = None) -> int:
    """Delete a fact."""
    owner = _owner(context, user)
    return _with_store(lambda store: facts.delete(store, owner, fact))
