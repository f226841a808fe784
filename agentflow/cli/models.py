"""What `agentflow models` shows: providers, what a server offers, whether a model answers, how far a fetch is.

Which model a string means is in `models.routing`; nothing here shows a key.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from agentflow.cli.chat import EXIT_FAILED, EXIT_USAGE, setup_fault
from agentflow.cli.screen import columns
from agentflow.errors import AgentflowError
from agentflow.messages import Message
from agentflow.models.base import ChatModel, ModelRequest
from agentflow.models.local import DEFAULT_NAME, PROVIDER
from agentflow.models.local_files import INSTALL_HINT, engine_installed, ensure_model
from agentflow.models.providers import ALIASES, PREFIXES
from agentflow.models.routing import KnownProvider, known_providers, provider_client
from agentflow.settings import Settings

_QUESTION = ModelRequest(messages=(Message(role="user", content="Hi"),), max_tokens=1)
# How OpenAI refuses that of a model that reasons first: the model is there, and so is the key.
_ONE_IS_TOO_FEW = re.compile(r"answered 400\b.*max_tokens or model output limit was reached")


def overview(settings: Settings) -> list[str]:
    """The lines that tell the known providers and the aliases."""
    providers = [
        (known.name, _key(known), known.key_variable or "-", known.default_model or "-", known.base_url)
        for known in known_providers(settings)
    ]
    local = (PROVIDER, "not needed", "-", DEFAULT_NAME, "on this machine" if engine_installed() else INSTALL_HINT)
    aliases = [
        *((f"{prefix}/…", f"{provider}/…") for prefix, provider in PREFIXES.items()),
        *((alias, _target(target)) for alias, target in {**ALIASES, **settings.aliases}.items()),
    ]
    chosen = settings.model.default or f"{PROVIDER}, if it is installed (model.default is not set)"
    return [
        *columns([("provider", "key", "variable", "default model", "address"), *providers, local]),
        "",
        *columns([("alias", "means"), *aliases]),
        "",
        f"without --model: {chosen}",
    ]


def _key(known: KnownProvider) -> str:
    if known.key_found:
        return "set"
    return "missing" if known.key_required else "not needed"


def _target(target: str | tuple[str, ...]) -> str:
    return target if isinstance(target, str) else ", then ".join(target)


async def served(provider: str, settings: Settings) -> list[str]:
    """The models that a provider's server has. Raises `ConfigError` and `ModelError`."""
    client = provider_client(provider, settings)
    try:
        return await client.list_models()
    finally:
        await client.aclose()


async def check(models: Sequence[ChatModel], say: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """Ask each model for one token, and close it. Each gives a line to `say` or to `complain`; the worst exit code."""
    return max([await _check(model, say, complain) for model in models])


async def _check(model: ChatModel, say: Callable[[str], None], complain: Callable[[str], None]) -> int:
    name, begun = _name(model), asyncio.get_running_loop().time()
    try:
        async with contextlib.aclosing(model.stream(_QUESTION)) as chunks:
            async for _ in chunks:
                pass
    except AgentflowError as error:
        if not _ONE_IS_TOO_FEW.search(str(error)):
            fault = setup_fault(error.kind, str(error), getattr(model, "name", None))
            complain(f"{name}: {fault or f'failed ({error.kind}): {error}'}")
            return EXIT_USAGE if fault else EXIT_FAILED
    finally:
        close = getattr(model, "aclose", None)
        if close is not None:
            await close()
    say(f"{name}: ok, {(asyncio.get_running_loop().time() - begun) * 1000:.0f} ms")
    return 0


def _name(model: ChatModel) -> str:
    name = f"{getattr(model, 'provider', '?')}/{getattr(model, 'name', '?')}"
    endpoint = getattr(model, "endpoint", None)
    return name if endpoint is None else f"{name} at {endpoint.base_url}"


def pull() -> Path:
    """Where the local model's file is, fetched with a bar of progress if it is not there yet. Raises `ConfigError`."""
    bar = (TextColumn("fetching the local model"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    progress = Progress(*bar, console=console, disable=not console.is_terminal)
    task = progress.add_task("", total=None)
    with contextlib.ExitStack() as shown:

        def show(done: int, total: int) -> None:
            if not progress.live.is_started:  # nothing to show where nothing is fetched
                shown.enter_context(progress)
            progress.update(task, completed=done, total=total)

        return ensure_model(show)
