"""Agent: what users construct. Owns what its runs share, and gives out chains.

How a run proceeds is in `chain` and `state`; which client a model string means is in `models.routing`.
"""

import asyncio
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import msgspec
from reactivex import Observable

from agentflow.bus import EventBus
from agentflow.chain import AgentChain, AgentReply
from agentflow.chain.run import Run
from agentflow.chain.runtime import RunInfo, Runtime, Transform
from agentflow.errors import AgentflowError, ConfigError, RequestError, RunNotFoundError
from agentflow.event_log import follow
from agentflow.events import MAX_EVENT_BYTES, AgentEvent, plain
from agentflow.messages import ToolSpec, clean_text
from agentflow.models.base import ChatModel, FunctionModel, StreamFunction, estimate_tool_tokens
from agentflow.models.routing import resolve
from agentflow.settings import Settings
from agentflow.state import Limits
from agentflow.stores.base import SessionKey, Store
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import CANCEL_GRACE, Clock, LoopClock, TaskOwner
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_REQUEST_BYTES = MAX_EVENT_BYTES - 4096  # what the `input` event has room for
_SHUTDOWN_GRACE = 5.0  # seconds in which ended runs may still write their end


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One message to an agent.

    An absent, blank or "null" `session_id` means a new session with a UUID. Ids match `[A-Za-z0-9_-]{1,128}`.
    `model` overrides the agent's own, `metadata` is JSON that goes into the `input` event and the tools' context;
    `agent` names one of several where a server has them.
    """

    input: str
    session_id: str | None = None
    user_id: str | None = None
    model: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    agent: str | None = None

    def checked(self) -> "AgentRequest":
        """The request with its session id settled. Raises `RequestError` naming what is wrong."""
        if not isinstance(self.input, str):
            raise RequestError(f"the input must be a text, not {type(self.input).__name__}")
        if not isinstance(self.metadata, Mapping):
            raise RequestError(f"metadata must be a mapping, not {type(self.metadata).__name__}")
        text, metadata = clean_text(self.input), plain(self.metadata)
        if len(msgspec.json.encode((text, metadata))) > _MAX_REQUEST_BYTES:
            raise RequestError(f"input and metadata are over {_MAX_REQUEST_BYTES} bytes of JSON; send less")
        session_id = self.session_id
        if session_id is None or (isinstance(session_id, str) and session_id.strip().lower() in ("", "null")):
            session_id = str(uuid.uuid4())
        for name, value in (("session_id", session_id), ("user_id", self.user_id)):
            if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
                raise RequestError(
                    f"{name} {str(value)[:140]!r} is not an id: 1 to 128 letters, digits, hyphens and underscores"
                )
        return replace(self, input=text, session_id=session_id, metadata=metadata)


class Agent:
    """A model with instructions and tools.

    `model` is a model string (see README), any `ChatModel`, or a bare async generator function; None takes the
    configured default. `base_url` and `api_key` point a model string at an OpenAI-compatible server. `tools` are
    functions, objects with decorated methods, or anything with `name, description, parameters, execute`.
    `transforms` see each event before it counts and may change its text. Agents of one app share `store` and `bus`
    by passing them in; who made them closes them.

    Constructing opens nothing; a wrong model or a missing key is told by the first `stream()`, `start()` or
    `chat()` as `ConfigError`. Use it as `async with`, or call `aclose()`.
    """

    def __init__(
        self,
        *,
        name: str = "agent",
        model: str | ChatModel | StreamFunction | None = None,
        instructions: str = "",
        tools: Iterable[Any] = (),
        description: str = "",
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        max_iterations: int | None = None,
        timeout: float | None = None,
        transforms: Sequence[Transform] = (),
        store: Store | None = None,
        bus: EventBus | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.tools = ToolRegistry(tools)
        self.bus = bus if bus is not None else EventBus()
        self._store: Store = store if store is not None else InMemoryStore()
        self._owns_store = store is None
        self._model = model
        self._address = (base_url, api_key)
        self._models: dict[str | None, ChatModel] = {}
        self._given_settings = settings
        self._given = (instructions, temperature, max_tokens, max_iterations, timeout, tuple(transforms), clock)
        self._runtime: Runtime | None = None
        self._specs: tuple[tuple[ToolSpec, ...], int] = ((), 0)
        self._runs: dict[str, Run] = {}
        self._closed = False

    # -- running -----------------------------------------------------------------------------------------

    def stream(self, input: str | AgentRequest, **fields: Any) -> AgentChain:  # noqa: A002  the request's own name
        """A chain for one message; nothing happens until its first consumer.

        Takes a text and the fields of `AgentRequest`, or a request. Raises `ConfigError` and `RequestError` here,
        before anything has begun.
        """
        return AgentChain(self._new_run(input, fields), self._ready().owner)

    def start(self, input: str | AgentRequest, **fields: Any) -> AgentChain:  # noqa: A002  the request's own name
        """Like `stream`, but begins at once and goes on without any consumer. Needs the running loop."""
        run = self._new_run(input, fields)
        run.detached = True
        run.start()
        return AgentChain(run, self._ready().owner)

    async def chat(self, input: str | AgentRequest, **fields: Any) -> AgentReply:  # noqa: A002  the request's own name
        """The whole answer. Raises `RunFailed` or `RunCancelled`; cancelling the call cancels the run."""
        return await self.stream(input, **fields).reply()

    def chat_sync(self, input: str | AgentRequest, **fields: Any) -> AgentReply:  # noqa: A002  the request's own name
        """`chat()` for scripts: runs an event loop of its own. Refuses inside a running one.

        Connections are closed before it returns; sessions stay, so the next call goes on with the conversation.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._chat_alone(input, fields))
        raise RuntimeError("chat_sync() would block the running event loop; use `await agent.chat(...)`")

    async def _chat_alone(self, input: str | AgentRequest, fields: dict[str, Any]) -> AgentReply:  # noqa: A002
        try:
            return await self.chat(input, **fields)
        finally:
            await self._close_connections(self._model)  # no other loop could close what this one opened

    def attach(self, run_id: str) -> AgentChain:
        """The chain of a run of this agent that is alive, to follow and control; leaving it only detaches.

        Raises `RunNotFoundError` for any other; an ended one can be read with `follow`.
        """
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFoundError(f"no live run {run_id!r} of agent {self.name!r}; an ended run can be followed")
        return AgentChain(run, self._ready().owner, attached=True)

    def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[AgentEvent, None]:
        """The events of any run in this agent's store with `seq > after`; see `event_log.follow`."""
        return follow(self._store, run_id, after)

    @property
    def events(self) -> Observable[AgentEvent]:
        """All events of all runs on this agent's bus, from now on; filter by `path[0]` where agents share it."""
        return self.bus.events

    # -- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all runs as `cancelled(shutdown)`, then close models, pools and the store if it is the agent's own.

        Tools and models that ignore their cancel are left after a second or so of grace, and counted in `abandoned`.
        """
        self._closed = True
        for run in tuple(self._runs.values()):
            run.cancel("shutdown")
        try:
            await self._close_connections()
        finally:  # also when the wait for the runs is cancelled: threads must not outlive the agent
            if self._runtime is not None:
                self._runtime.pools.close()
            if self._owns_store:
                await self._store.aclose()

    @property
    def abandoned(self) -> int:
        """Tool and model calls left behind: their thread or task went on after their time or their run was over."""
        return self._runtime.pools.abandoned + self._runtime.owner.abandoned if self._runtime is not None else 0

    async def _close_connections(self, *models: object) -> None:
        """Let runs write their end, then close what belongs to this event loop: the agent's models and `models`."""
        if self._runtime is not None:
            await self._runtime.owner.drain(_SHUTDOWN_GRACE)
            await self._runtime.owner.aclose(CANCEL_GRACE)
        for model in (*self._models.values(), *models):
            close = getattr(model, "aclose", None)
            if close is not None:
                await close()
        self._models.clear()

    # -- making runs -------------------------------------------------------------------------------------

    def _new_run(self, input: str | AgentRequest, fields: dict[str, Any]) -> Run:  # noqa: A002
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} is closed")
        if isinstance(input, AgentRequest):
            if fields:
                raise RequestError(f"give {', '.join(sorted(fields))} in the AgentRequest, not beside it")
            request = input.checked()
        else:
            request = _request(input, fields).checked()
        info = RunInfo(
            run_id=str(uuid.uuid4()),
            session=SessionKey(request.session_id or "", request.user_id),
            trace_id=secrets.token_hex(16),
            path=(self.name,),
            text=request.input,
            model=self._resolve(request.model),
            model_name=request.model or (self._model if isinstance(self._model, str) else ""),
            metadata=request.metadata,
        )
        return Run(self._ready(), info, on_start=self._started, on_closed=self._ended)

    def _started(self, run: Run) -> None:
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} was closed before this run began")
        self._runs[run.info.run_id] = run

    def _ended(self, run: Run) -> None:
        self._runs.pop(run.info.run_id, None)

    def _resolve(self, asked: str | None) -> ChatModel:
        """The model for a request, kept for the next one that asks for it."""
        if asked is None and self._model is not None and not isinstance(self._model, str):
            return self._model if isinstance(self._model, ChatModel) else FunctionModel(self._model)
        name = asked if asked is not None else (self._model if isinstance(self._model, str) else None)
        if name not in self._models:
            base_url, api_key = self._address
            self._models[name] = resolve(name, self._settings(), base_url=base_url, api_key=api_key)
        return self._models[name]

    def _settings(self) -> Settings:
        if self._given_settings is None:
            self._given_settings = Settings()
        return self._given_settings

    def _ready(self) -> Runtime:
        """What runs share, made when the first is asked for: a constructed agent has read no settings yet."""
        if self._runtime is None:
            self._runtime = self._make_runtime(self._settings())
        return self._runtime

    def _make_runtime(self, settings: Settings) -> Runtime:
        instructions, temperature, max_tokens, max_iterations, timeout, transforms, clock = self._given
        if max_iterations is not None and max_iterations < 1:
            raise ConfigError(f"max_iterations is {max_iterations}; an agent needs at least one model round")
        pools = Pools({name: (pool.size, pool.queue) for name, pool in settings.pools.items()})
        for tool in self.tools:
            pools.get(tool.pool)  # a pool that was not configured is told now, not by the first call
        return Runtime(
            name=self.name,
            instructions=instructions,
            store=self._store,
            bus=self.bus,
            tools=self.tools,
            describe_tools=self._describe_tools,
            pools=pools,
            clock=clock or LoopClock(),
            owner=TaskOwner(),
            limits=Limits(
                max_iterations=max_iterations or settings.chain.max_iterations,
                max_parallel_tools=settings.chain.max_parallel_tools,
            ),
            timeout=settings.chain.timeout if timeout is None else timeout,
            window=settings.flow.window_ms / 1000,
            max_batch_bytes=settings.flow.max_bytes,
            run_log_bytes=settings.limits.run_log_bytes,
            temperature=settings.model.temperature if temperature is None else temperature,
            max_tokens=settings.model.max_tokens if max_tokens is None else max_tokens,
            transforms=transforms,
        )

    def _describe_tools(self) -> tuple[tuple[ToolSpec, ...], int]:
        specs = self.tools.specs()
        if specs is not self._specs[0]:  # the registry gives the same tuple until a tool is added
            self._specs = (specs, estimate_tool_tokens(specs))
        return self._specs


def _request(text: str, fields: dict[str, Any]) -> AgentRequest:
    try:
        return AgentRequest(text, **fields)
    except TypeError as error:
        known = ", ".join(name for name in AgentRequest.__dataclass_fields__ if name != "input")
        raise RequestError(f"{error}; a request has the fields {known}") from None
