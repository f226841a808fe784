"""Agent: what users construct. Owns what its runs share, and gives out chains.

How a run proceeds is in `chain` and `state`; which client a model string means is in `models.routing`.
"""

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Any, Self, Unpack

from reactivex import Observable

from agentflow.bus import EventBus
from agentflow.chain import AgentChain, AgentReply
from agentflow.chain.gates import Gate
from agentflow.chain.nesting import AgentTool, agent_tool, below, limits_of
from agentflow.chain.output import Output
from agentflow.chain.recovery import first_input, info_of, open_runs
from agentflow.chain.request import (
    AgentRequest,
    Input,
    ModelOptions,
    RequestFields,
    checked_options,
    request_of,
)
from agentflow.chain.run import Run
from agentflow.chain.runtime import RunInfo, Runtime, Transform
from agentflow.chain.setup import Given, check_own, make_runtime
from agentflow.chain.tracing import SummaryCall, new_trace
from agentflow.errors import AgentflowError, RunNotFoundError
from agentflow.event_log import Reader
from agentflow.events import AgentEvent
from agentflow.models.base import ChatModel, StreamFunction, Tokenizer, estimate_tokens
from agentflow.models.clients import ModelClients, close
from agentflow.settings import Settings
from agentflow.stores.base import RunRecord, SessionKey, Store
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import CANCEL_GRACE, Clock, is_running
from agentflow.tools.policy import Approval
from agentflow.tools.pools import PoolStats
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import DEFAULT_RESOLVERS, Resolver

# The agents, by id, whose `chat_sync` waits for the code that is running.
_WAITING_AGENTS: ContextVar[frozenset[int]] = ContextVar("agentflow_waiting_agents", default=frozenset())

logger = logging.getLogger(__name__)

_SHUTDOWN_GRACE = 5.0  # seconds in which ended runs may still write their end


class Agent:
    """A model with instructions and tools.

    `model` is a model string (see README), any `ChatModel`, or a bare async generator function; None takes the
    configured default. `base_url` and `api_key` point a model string at an OpenAI-compatible server. `tools` are
    functions, objects with decorated methods, or anything with `name, description, parameters, execute`.
    `transforms` see texts before they count and may change them (README says which). `output` is a type that
    pydantic knows: the answer must be its JSON, is corrected once, and is then `reply.output`. `degraded` is the
    answer when every model has failed, instead of a failed run. `resolvers` are the steps that correct the notation of
    a model's arguments, in order; `tokenizer` counts where a provider does not (see `models.tokens`). Agents of one
    app share `store`, `bus` and `gate`, their limits (see `observability.gates`), by passing them in; who made them
    closes them. `examples` are messages to it that pages offer to their users, beside its `description`.

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
        examples: Sequence[str] = (),
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        model_options: ModelOptions | None = None,
        output: Any = None,
        degraded: str | None = None,
        max_iterations: int | None = None,
        max_tool_calls: int | None = None,
        token_budget: int | None = None,
        timeout: float | None = None,
        approval_timeout: float | None = None,
        transforms: Sequence[Transform] = (),
        resolvers: Sequence[Resolver] = DEFAULT_RESOLVERS,
        tokenizer: Tokenizer = estimate_tokens,
        store: Store | None = None,
        bus: EventBus | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        gate: Gate | None = None,
    ) -> None:
        check_own(name, model, examples, transforms, temperature, max_tokens)
        self.name = name
        self.description = description
        self.examples = tuple(examples)
        self.tools = ToolRegistry(tools)
        self.bus = bus if bus is not None else EventBus()
        self._store: Store = store if store is not None else InMemoryStore()
        self._owns_store = store is None
        self.gate = gate
        self.summary_calls: list[Callable[[SummaryCall], None]] = []  # told of each, for no log has them
        self._models = ModelClients(model, base_url=base_url, api_key=api_key)
        self._given_settings = settings
        self._given = Given(
            name=name,
            instructions=instructions,
            tools=self.tools,
            store=self._store,
            bus=self.bus,
            bounds={
                "max_iterations": max_iterations,
                "max_tool_calls": max_tool_calls,
                "token_budget": token_budget,
                "timeout": timeout,
                "approval_timeout": approval_timeout,
            },
            options={"temperature": temperature, "max_tokens": max_tokens, **checked_options(model_options)},
            output=Output(output) if output is not None else None,
            degraded=degraded,
            transforms=tuple(transforms),
            resolvers=resolvers,
            tokenizer=tokenizer,
            clock=clock,
            resolve=self._resolve,
            summary_calls=self.summary_calls,
        )
        self._runtime: Runtime | None = None
        self._runs: dict[str, Run] = {}
        self._users: set[int] = set()  # the agents above this one that have had runs and have not been closed
        self._closed = False
        self._alone = threading.Lock()  # one chat_sync at a time: each has a loop of its own

    # -- running -----------------------------------------------------------------------------------------

    def stream(
        self,
        input: Input | AgentRequest,  # noqa: A002  the request's own name
        **fields: Unpack[RequestFields],
    ) -> AgentChain:
        """A chain for one message; nothing happens until its first consumer.

        Takes a text and the fields of `AgentRequest`, or a request. Raises `ConfigError` and `RequestError` here,
        before anything has begun.
        """
        request = self._checked(input, fields)
        held = self._waiting(request)
        if held is not None:
            return AgentChain(held, self._ready().owner, answer=request.text)
        return AgentChain(self._new_run(request), self._ready().owner)

    def start(
        self,
        input: Input | AgentRequest,  # noqa: A002  the request's own name
        **fields: Unpack[RequestFields],
    ) -> AgentChain:
        """Like `stream`, but begins at once and goes on without any consumer. Needs the running loop."""
        request = self._checked(input, fields)
        run = self._waiting(request)
        if run is not None:
            run.decide(run.control.answer_next(request.text))
        else:
            run = self._new_run(request)
        run.detached = True
        run.start()
        return AgentChain(run, self._ready().owner)

    async def chat(
        self,
        input: Input | AgentRequest,  # noqa: A002  the request's own name
        **fields: Unpack[RequestFields],
    ) -> AgentReply:
        """The whole answer. Raises `RunFailed` or `RunCancelled`; cancelling the call cancels the run."""
        return await self.stream(input, **fields).reply()

    def chat_sync(
        self,
        input: Input | AgentRequest,  # noqa: A002  the request's own name
        **fields: Unpack[RequestFields],
    ) -> AgentReply:
        """`chat()` for scripts: runs an event loop of its own. Refuses inside a running one.

        Connections are closed before it returns; sessions stay, so the next call goes on with the conversation. Calls
        from several threads run one after another.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if id(self) in _WAITING_AGENTS.get():
                raise AgentflowError(
                    f"agent {self.name!r} runs this tool in its own chat_sync(), which would wait for itself; make the "
                    "tool a coroutine and use `await agent.chat(...)` in it"
                ) from None
            with self._alone:
                if self._runs:
                    raise AgentflowError(
                        f"agent {self.name!r} has runs in another event loop; use `await agent.chat(...)` there"
                    ) from None
                return asyncio.run(self._chat_alone(input, fields))
        raise RuntimeError("chat_sync() would block the running event loop; use `await agent.chat(...)`")

    async def _chat_alone(self, input: Input | AgentRequest, fields: RequestFields) -> AgentReply:  # noqa: A002
        _WAITING_AGENTS.set(_WAITING_AGENTS.get() | {id(self)})  # in this loop's own context
        try:
            return await self.chat(input, **fields)
        finally:
            for run in tuple(self._runs.values()):  # one that waits for a human cannot go on in another loop
                run.cancel("shutdown")
            await self._close_connections(given=True)  # no other loop could close what this one opened

    async def recover(self, run_id: str | None = None) -> list[AgentChain]:
        """Take over the runs of this agent's name whose process died, or that one, and give their chains.

        Call it when a service starts. Each goes on from its log, once and detached: a model call is begun anew
        (`rollback(crashed)`), a tool call that was running ends as `unknown_outcome` unless its tool is idempotent,
        what waits for a human waits on, and a missing terminal event is written. `chain.recovery = "fail"` ends them
        as `failed(crashed)` instead, but for those that wait for a human. Runs that another process works on are left
        to it, for up to 15 s after its death. It needs the same agents and tools; a run that cannot be taken over is
        logged and left. Raises `StoreError` if the runs cannot be listed.
        """
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} is closed")
        records = [record async for record in open_runs(self._store, run_id) if record.run_id not in self._runs]
        runs = [await self._recovered(record) for record in records]
        return [AgentChain(run, self._ready().owner) for run in runs if run is not None]

    async def _recovered(self, record: RunRecord) -> Run | None:
        runtime = self._run_runtime()
        try:
            begun = await first_input(runtime, record)
            if begun is None or begun.path[0] != self.name:
                return None
            models = self._resolve(begun.model or None)
            run = Run(runtime, info_of(begun, models, self.bus), on_start=self._started, on_closed=self._ended)
            return run if await run.recover() else None
        except AgentflowError:
            logger.exception("run %s could not be recovered", record.run_id)
            return None

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
        return self.reader(run_id, after).events()

    def reader(self, run_id: str, after: int = 0) -> Reader:
        """`follow` page by page, for who waits no longer than a time of his own and then goes on."""
        run = self._runs.get(run_id)
        return Reader(self._store, run_id, after, run.wait if run is not None else None)

    @property
    def store(self) -> Store:
        """Where its runs and sessions are kept; whoever made it closes it."""
        return self._store

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval = False,
        sequential: bool = False,
    ) -> AgentTool:
        """This agent as a tool of another one, in whose run its chain is then a part: `Agent(tools=[agent.as_tool()])`.

        The calling model gives it a task as `input`; it sees nothing else of the conversation, and its answer is the
        call's result. Its events stand in the root's log under a `path`, its questions and approvals are answered at
        the root, whose cancel, deadline and budgets hold for it too. Agents call each other up to five deep. It needs
        no `async with` of its own: it is closed with the last agent that has it as a tool. `name` and `description`
        are what the calling model sees, else the agent's own; for `approval` and `sequential` see `tool`.
        """
        shown = name if name is not None else self.name
        told = description or self.description or f"Give a task to the agent {self.name!r}; it answers in text."
        return agent_tool(self, name=shown, description=told, approval=approval, sequential=sequential)

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

        In a store that was passed in, runs that wait for a human wait on: whoever recovers them can be answered.
        Tools and models that ignore their cancel are left after a second or so of grace, and counted in `abandoned`.
        """
        self._closed = True
        for run in tuple(self._runs.values()):
            if run.waits and not self._owns_store:
                run.leave()
            else:
                run.cancel("shutdown")
        try:
            await self._close_connections()
        finally:  # also when the wait for the runs is cancelled: threads must not outlive the agent
            if self._runtime is not None:
                self._runtime.pools.close()
            for agent in self._below():
                await agent._give_back(self)
            if self._owns_store:
                await self._store.aclose()

    def live(self) -> Iterator[AgentChain]:
        """The chains of its runs that are alive here, to look on. From any thread."""
        return (AgentChain(run, self._ready().owner, attached=True) for run in tuple(self._runs.values()))

    @property
    def pools(self) -> tuple[PoolStats, ...]:
        """The thread pools of its tools as they are now; none before the first run."""
        return self._runtime.pools.stats() if self._runtime is not None else ()

    @property
    def abandoned(self) -> int:
        """Tool and model calls ever left behind: their thread or task went on when their time or run was over."""
        return self._runtime.pools.left + self._runtime.owner.abandoned if self._runtime is not None else 0

    async def _close_connections(self, *, given: bool = False) -> None:
        """Close what belongs to this event loop, also for the agents below that no other agent has."""
        await self._disconnect(given=given)
        for agent in self._below():
            if agent._users == {id(self)} and not agent._runs:  # else runs of its own still need them
                await agent._disconnect(given=given)

    async def _disconnect(self, *, given: bool) -> None:
        """Let runs write their end, then close this agent's connections; `given`: the user's own model too."""
        if self._runtime is not None:
            await self._runtime.owner.drain(_SHUTDOWN_GRACE)
            await self._runtime.owner.aclose(CANCEL_GRACE)
        await self._models.aclose(given=given)

    # -- making runs -------------------------------------------------------------------------------------

    def _checked(self, input: Input | AgentRequest, fields: RequestFields) -> AgentRequest:  # noqa: A002
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} is closed")
        return request_of(input, fields)

    def _waiting(self, request: AgentRequest) -> Run | None:
        """The run of the request's session that has asked its user something: the message is the answer to it.

        Raises `SessionBusyError` if it waits for an approval only, which no message gives.
        """
        key = SessionKey(request.session_id or "", request.user_id)
        held = next((run for run in self._runs.values() if run.info.session == key and run.waits), None)
        return held.for_next_message() if held is not None and self._ready().memory.busy != "supersede" else None

    def _new_run(self, request: AgentRequest) -> Run:
        run_id = str(uuid.uuid4())
        info = RunInfo(
            run_id=run_id,
            session=SessionKey(request.session_id or "", request.user_id),
            trace=new_trace(self.bus, request.metadata),
            path=(self.name,),
            text=request.text,
            content=request.input,
            models=self._resolve(request.model),
            model_name=request.model or self._models.name,
            metadata=request.metadata,
            chain_id=run_id,
        )
        return Run(self._run_runtime(), info, on_start=self._started, on_closed=self._ended)

    def _run_runtime(self) -> Runtime:
        """What the next run is lent: with the tools and agents that there are now. Raises `ConfigError` for any."""
        for agent in self._below():
            agent._users.add(id(self))
            agent.lend()
        runtime, limits = self._ready(), limits_of(self)
        return runtime if limits is runtime.limits else replace(runtime, limits=limits)

    def lend(self) -> tuple[Runtime, tuple[ChatModel, ...], str]:
        """See `nesting.Callee`."""
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} is closed")
        return self._ready(), self._resolve(None), self._models.name

    def _below(self) -> Iterator["Agent"]:
        return (agent for agent in below(self) if isinstance(agent, Agent))

    async def _give_back(self, user: "Agent") -> None:
        """An agent above this one is closed; with the last of them goes what this one has opened."""
        self._users.discard(id(user))
        if self._users or self._runs or self._closed:
            return
        await self._disconnect(given=False)
        if self._runtime is not None:
            self._runtime.pools.close()
            self._runtime = None  # it may be used again, by itself or as a tool

    def _started(self, run: Run) -> None:
        if self._closed:
            raise AgentflowError(f"agent {self.name!r} was closed before this run began")
        if self._ready().memory.busy == "supersede":  # at once; other processes' runs hear of it from the store
            for other in self._runs.values():
                if other.info.session == run.info.session:
                    other.cancel("superseded")
        self._runs[run.info.run_id] = run

    def _ended(self, run: Run) -> None:
        self._runs.pop(run.info.run_id, None)

    def _resolve(self, asked: str | None) -> tuple[ChatModel, ...]:
        """The models to try for a request."""
        models = self._models.resolve(asked, self._settings)
        if is_running():
            used = (model for run in self._runs.values() for model in run.info.models)
            for model in self._models.superfluous(chain(used, models)):
                self._ready().owner.spawn(close(model), name="agentflow closing a model")
        return models

    def _settings(self) -> Settings:
        self._given_settings = self._given_settings or Settings()
        return self._given_settings

    def _ready(self) -> Runtime:
        """What runs share, made when the first is asked for: a constructed agent has read no settings yet."""
        if self._runtime is None:
            self._runtime = make_runtime(self._given, self._settings(), self.gate)
        return self._runtime
