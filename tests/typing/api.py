"""The public API as DESIGN 6 shows it. Checked by mypy and pyright in strict mode, never run."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

from pydantic import BaseModel
from reactivex import Observable
from reactivex.abc import DisposableBase

from agentflow import (
    Agent,
    AgentChain,
    AgentEvent,
    AgentReply,
    AgentRequest,
    ChatModel,
    EventBus,
    EventType,
    InMemoryStore,
    Message,
    ModelChunk,
    ModelRequest,
    Settings,
    State,
    ToolContext,
    Usage,
    micro_batch,
    of_type,
    tool,
)
from agentflow.chain.request import ModelOptions
from agentflow.events import (
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    FinalEvent,
    QuestionEvent,
    TerminalEvent,
    ToolRecord,
    ToolStartEvent,
)
from agentflow.messages import ImagePart, TextPart
from agentflow.models.scripted import ScriptedModel, call


@dataclass
class Order:
    order_id: str
    total: float


@tool
def order_detail(order_id: str) -> Order:
    """Look up one order.

    Args:
        order_id: Order number, e.g. ORD2025010001.
    """
    return Order(order_id, 1.5)


@tool(name="refund", description="Pay back.", examples=[{"order_id": "x"}], timeout=5.0, pool="default")
async def pay_back(order_id: str, context: ToolContext) -> str:
    return f"{order_id} for {context.user_id}"


@tool(parameters={"type": "object", "properties": {}})
async def numbers(**arguments: Any) -> AsyncIterator[int]:
    yield len(arguments)


class WeatherTools:
    def __init__(self, client: str) -> None:
        self.client = client

    @tool
    def weather(self, city: str) -> str:
        """The weather in a city."""
        return f"{self.client}: {city}"


class OwnTool:
    name = "own"
    description = "A tool that describes itself."

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object"}

    def execute(self, arguments: dict[str, Any]) -> Any:
        return arguments


async def counter(request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
    yield ModelChunk(text=f"{len(request.messages)} messages", usage=Usage(input_tokens=1))


class OwnModel:
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        for message in request.messages:
            assert_type(message, Message)
        yield ModelChunk(text="hi")


def a_decorated_function_keeps_its_type() -> None:
    assert_type(order_detail("x"), Order)
    assert_type(WeatherTools("client").weather("Oslo"), str)


async def a_decorated_coroutine_too(context: ToolContext) -> None:
    assert_type(await pay_back("x", context), str)
    async for number in numbers(a=1):
        assert_type(number, int)


def models() -> list[Agent]:
    model: ChatModel = OwnModel()
    scripted = ScriptedModel("hi", [call("weather", city="Oslo"), "and more"], delay=0.1)
    return [Agent(model=model), Agent(model=counter), Agent(model=scripted), Agent(model="openai/gpt-5-mini"), Agent()]


def redact(event: AgentEvent) -> AgentEvent:
    return event


async def an_agent() -> None:
    tools = [order_detail, pay_back, numbers, WeatherTools("client"), OwnTool()]
    async with Agent(
        name="shop",
        model="openai/gpt-5-mini",
        instructions="Be brief.",
        tools=tools,
        base_url="http://127.0.0.1:1/v1",
        api_key="key",
        transforms=[redact],
        store=InMemoryStore(),
        bus=EventBus(),
        settings=Settings(),
    ) as agent:
        assert_type(agent, Agent)
        chain = agent.stream("Where is ORD2025010001?", session_id="s1", user_id="u1")
        assert_type(chain, AgentChain)
        assert_type(agent.stream(AgentRequest("hello", metadata={"page": 1})), AgentChain)
        assert_type(agent.start("hello"), AgentChain)
        assert_type(agent.attach(chain.run_id), AgentChain)
        await a_chain(chain)
        reply = await agent.chat("hello")
        assert_type(reply, AgentReply)
        assert_type(reply.tools, tuple[ToolRecord, ...])
        assert_type(reply.pending, tuple[QuestionEvent | ApprovalEvent, ...])
        async for event in agent.follow(chain.run_id, after=17):
            narrow(event)
        views(agent)


def what_is_asked(agent: Agent) -> None:
    parts = (TextPart("Which is mine?"), ImagePart(data=b"png", media_type="image/png"))
    assert_type(agent.stream(parts, session_id=None, user_id="u", model="ollama", metadata={}), AgentChain)
    assert_type(agent.stream(AgentRequest(parts, session_id="s")), AgentChain)
    # What is wrong is told before it runs: each of these must be an error, or its comment is one.
    agent.stream("hello", sesion_id="s")  # type: ignore[call-arg]
    agent.start("hello", session_id=5)  # type: ignore[arg-type]
    agent.chat_sync(b"hello")  # type: ignore[arg-type]
    Agent(model_options={"sed": 7})  # type: ignore[arg-type]


class Weather(BaseModel):
    degrees: int


async def a_form() -> Weather:
    options: ModelOptions = {"seed": 7, "stop": ("END",), "tool_choice": "none", "extra_body": {"top_k": 5}}
    agent = Agent(output=Weather, degraded="Not now.", model_options=options)
    reply = await agent.chat("How cold is it?")
    weather: Weather = reply.output
    return weather


def a_script(agent: Agent) -> str:
    return agent.chat_sync("hello", session_id="s1").text


async def a_chain(chain: AgentChain) -> None:
    def on_event(event: AgentEvent) -> None:
        narrow(event)

    assert_type(chain.subscribe(on_event), DisposableBase)
    async for event in chain:
        assert_type(event.seq, int)
        narrow(event)
    assert_type(await chain, TerminalEvent)
    assert_type(await chain.reply(), AgentReply)
    assert_type(chain.state, State)
    assert_type(chain.run_id, str)
    assert_type(chain.session_id, str)
    assert_type(chain.answers(), Observable[str])
    chain.cancel()
    chain.cancel("superseded")
    chain.answer("blue", question_id=None)
    chain.approve("c1", arguments_hash=None)
    chain.reject("c1", "no")
    chain.amend("c1", {"city": "Oslo"})


async def an_end(chain: AgentChain) -> str:
    end = await chain
    if isinstance(end, FinalEvent):
        return end.text
    if end.type == EventType.FAILED:
        assert_type(end, FailedEvent)
        return end.error.message
    assert_type(end, CancelledEvent)
    return end.reason


def narrow(event: AgentEvent) -> None:
    if isinstance(event, DeltaEvent):
        assert_type(event.text, str)
    if event.type == EventType.DELTA:
        assert_type(event, DeltaEvent)
        assert_type(event.count, int)
    elif event.type is EventType.TOOL_START:
        assert_type(event, ToolStartEvent)
    match event:
        case FinalEvent(text=text):
            assert_type(text, str)
        case _:
            pass


def count(event: AgentEvent) -> None:
    """A tap."""


def views(agent: Agent) -> None:
    assert_type(agent.events, Observable[AgentEvent])
    agent.events.filter(lambda event: event.type == EventType.TOOL_START).subscribe(count)
    starts = agent.events.pipe(of_type(ToolStartEvent))
    assert_type(starts, Observable[ToolStartEvent])
    assert_type(starts.map(lambda event: event.tool), Observable[str])
    assert_type(agent.events.pipe(micro_batch(window=0.1)), Observable[AgentEvent])
    chain = agent.stream("hello")
    assert_type(chain.pipe(of_type(DeltaEvent)).map(lambda event: event.text), Observable[str])
    late: Observable[AgentEvent] = chain.filter(lambda event: event.iteration > 1)  # Any by reactivex's own signature
    late.subscribe(count)
    agent.bus.attach(count, name="counter").dispose()
