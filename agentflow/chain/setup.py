"""What an agent was given and what is configured, made into what its runs share.

The agent's own arguments beat the settings. Nothing is opened here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agentflow.bus import EventBus
from agentflow.chain.gates import Gate
from agentflow.chain.leases import Leases
from agentflow.chain.output import Output
from agentflow.chain.remembering import Memory
from agentflow.chain.request import checked_number, is_model_string
from agentflow.chain.runtime import Runtime, Transform
from agentflow.chain.tracing import SummaryCall
from agentflow.errors import ConfigError
from agentflow.memory import MemoryPolicy
from agentflow.messages import ToolSpec, clean_text
from agentflow.models.base import ChatModel, Tokenizer, estimate_tool_tokens
from agentflow.models.resilience import RetryPolicy
from agentflow.settings import ChainSettings, Settings
from agentflow.state import Limits
from agentflow.stores.base import Store
from agentflow.streams import Clock, LoopClock, TaskOwner
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import Resolver


@dataclass(frozen=True, slots=True)
class Given:
    """What an agent was constructed with. `bounds` are its own `ChainSettings`, `options` those of its requests.

    `resolve` gives the models that a model string means. `summary_calls` are told of model calls for summaries.
    """

    name: str
    instructions: str
    tools: ToolRegistry
    store: Store
    bus: EventBus
    bounds: Mapping[str, Any]
    options: Mapping[str, Any]
    output: Output | None
    degraded: str | None
    transforms: tuple[Transform, ...]
    resolvers: Sequence[Resolver]
    tokenizer: Tokenizer
    clock: Clock | None
    resolve: Callable[[str], tuple[ChatModel, ...]]
    summary_calls: Sequence[Callable[[SummaryCall], None]]


def check_own(
    name: Any,
    model: Any,
    examples: Sequence[str],
    transforms: Sequence[Transform],
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Raise `ConfigError` for what an agent cannot be given itself, whatever is configured."""
    if not isinstance(name, str) or not name.strip() or clean_text(name) != name:
        raise ConfigError(f"an agent's name must be a text, not {name!r}")
    if inspect.iscoroutinefunction(getattr(model, "stream", model)):
        raise ConfigError(f"the model {model!r} must be an async generator: it has to yield ModelChunk objects")
    if isinstance(model, str) and not is_model_string(model):
        raise ConfigError(f"model={model[:140]!r} is no model string: a short printable text, e.g. 'openai/gpt-5-mini'")
    if isinstance(examples, str) or not all(isinstance(text, str) and text.strip() for text in examples):
        raise ConfigError(f"examples are a list of messages, each a text, not {examples!r}")
    if any(inspect.iscoroutinefunction(transform) for transform in transforms):
        raise ConfigError("a transform must be a plain function: events are not awaited for")
    checked_number("temperature", temperature, 0)
    checked_number("max_tokens", max_tokens, 1)


def make_runtime(given: Given, settings: Settings, gate: Gate | None = None) -> Runtime:
    """What the runs of an agent share. Raises `ConfigError` for what is no store, no such bound or no pool."""
    if not hasattr(given.store, "open_session"):
        raise ConfigError(f"store={given.store!r} is no store; give an object, such as SqliteStore('agentflow.db')")
    bounds = _with_bounds(settings.chain, given.bounds)
    pools = Pools({name: (pool.size, pool.queue) for name, pool in settings.pools.items()})
    for tool in given.tools:
        pools.get(tool.pool)  # told now, not by the first call
    clock, owner = given.clock or LoopClock(), TaskOwner()
    return Runtime(
        name=given.name,
        instructions=given.instructions,
        store=given.store,
        bus=given.bus,
        tools=given.tools,
        describe_tools=_ToolSpecs(given.tools, given.tokenizer).tell,
        pools=pools,
        clock=clock,
        owner=owner,
        leases=Leases(given.store, clock, owner),
        memory=_memory(given, settings, clock),
        limits=_limits(given, bounds, settings),
        timeout=bounds.timeout,
        approval_timeout=bounds.approval_timeout,
        recovery=bounds.recovery,
        window=settings.flow.window_ms / 1000,
        max_batch_bytes=settings.flow.max_bytes,
        run_log_bytes=settings.limits.run_log_bytes,
        request_options=_request_options(given, settings),
        retries=RetryPolicy(**dict(settings.model.retries)),
        output=given.output,
        resolvers=given.resolvers,
        count_tokens=given.tokenizer,
        validation=settings.tools.validation,
        transforms=given.transforms,
        gate=gate,
        summary_calls=given.summary_calls,
    )


def _memory(given: Given, settings: Settings, clock: Clock) -> Memory:
    memory, summary_model = settings.memory, settings.memory.summary_model
    if summary_model is not None:
        given.resolve(summary_model)  # told now, not beside the first run that has something to summarise
    return Memory(
        store=given.store,
        clock=clock,
        count=given.tokenizer,
        policy=MemoryPolicy(
            strategy=memory.strategy,
            turns=memory.turns,
            layered_from=memory.layered_from,
            confidence=memory.confidence,
        ),
        busy=settings.session.busy,
        context_tokens=memory.context_tokens,
        summary_models=None if summary_model is None else lambda: given.resolve(summary_model),
    )


def _limits(given: Given, bounds: ChainSettings, settings: Settings) -> Limits:
    return Limits(
        max_iterations=bounds.max_iterations,
        max_parallel_tools=bounds.max_parallel_tools,
        max_round_calls=bounds.max_round_calls,
        max_tool_calls=bounds.max_tool_calls,
        token_budget=bounds.token_budget,
        max_corrections=settings.tools.corrections,
        max_all_corrections=settings.tools.corrections_in_all,
        degraded=settings.model.degraded if given.degraded is None else given.degraded,
        questions=given.output is None,
    )


def _request_options(given: Given, settings: Settings) -> dict[str, Any]:
    defaults = {"temperature": settings.model.temperature, "max_tokens": settings.model.max_tokens}
    own = {name: value for name, value in given.options.items() if value is not None}
    form = {"response_format": given.output.schema} if given.output is not None else {}
    return defaults | form | own


class _ToolSpecs:
    """The tools as a model sees them, with the estimate of their tokens; counted again when a tool was added."""

    def __init__(self, tools: ToolRegistry, tokenizer: Tokenizer) -> None:
        self._tools = tools
        self._tokenizer = tokenizer
        self._told: tuple[tuple[ToolSpec, ...], int] = ((), 0)

    def tell(self) -> tuple[tuple[ToolSpec, ...], int]:
        specs = self._tools.specs()
        if specs is not self._told[0]:  # the registry gives the same tuple until a tool is added
            self._told = (specs, estimate_tool_tokens(specs, self._tokenizer))
        return self._told


def _with_bounds(section: ChainSettings, bounds: Mapping[str, Any]) -> ChainSettings:
    """The section with what the agent was given itself. Raises `ConfigError` for the first that is out of range."""
    own = {name: value for name, value in bounds.items() if value is not None}
    try:
        return ChainSettings.model_validate(section.model_dump() | own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{first['loc'][0]} is {first['input']!r}; {first['msg'].lower()}") from None
