"""What the embedded model gets right, and how fast it is: `python benchmarks/local_model.py`.

A call is valid if it names a known tool and its arguments are whole, right if tool and arguments are those a person
would choose. The second list of questions was written after the prompts were settled, and changed nothing in them.
"""

import asyncio
import json
import time
from contextlib import aclosing

from agentflow.messages import Message, ToolSpec
from agentflow.models.base import ModelRequest
from agentflow.models.local import LocalModel


def tool(name: str, description: str, parameter: str, *examples: str) -> ToolSpec:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return ToolSpec(
        name=name, description=description, parameters=schema, examples=tuple({parameter: e} for e in examples)
    )


TOOLS = (
    tool("calculator", "Evaluate an arithmetic expression.", "expression", "2+3*4", "(17-5)/4"),
    tool("current_time", "Tell the current date and time in a time zone.", "timezone", "Asia/Tokyo", "Europe/Paris"),
    tool("get_weather", "Get the current weather of a city.", "city", "Berlin", "New York"),
)
# Question, tool, and the argument: the value of a sum, or any of the accepted names. No tool: answer in words.
CHOSEN = (
    ("What is 2+3*4?", "calculator", 14),
    ("What is 17*23?", "calculator", 391),
    ("Calculate 144/12", "calculator", 12),
    ("How much is 100 minus 37?", "calculator", 63),
    ("What is (3 + 4) * 5?", "calculator", 35),
    ("Please add 12 and 30.", "calculator", 42),
    ("计算 15*8", "calculator", 120),
    ("What is the weather in Paris?", "get_weather", ("Paris",)),
    ("How is the weather in London today?", "get_weather", ("London",)),
    ("Is it raining in Tokyo?", "get_weather", ("Tokyo",)),
    ("Tell me the weather for San Francisco", "get_weather", ("San Francisco",)),
    ("What's the temperature in Madrid right now?", "get_weather", ("Madrid",)),
    ("北京天气怎么样？", "get_weather", ("北京", "Beijing")),
    ("上海今天的天气", "get_weather", ("上海", "Shanghai")),
    ("What time is it in Tokyo?", "current_time", ("Asia/Tokyo",)),
    ("What time is it in London?", "current_time", ("Europe/London",)),
    ("What is the current time in New York?", "current_time", ("America/New_York",)),
    ("Tell me the time in Paris", "current_time", ("Europe/Paris",)),
    ("What time is it in UTC?", "current_time", ("UTC", "Etc/UTC")),
    ("现在东京几点？", "current_time", ("Asia/Tokyo",)),
    *((question, None, None) for question in ("Hello!", "Who are you?", "What is the capital of France?")),
    *(
        (question, None, None)
        for question in ("Tell me a short joke.", "Thank you very much.", "Give me three fruits.")
    ),
    *((question, None, None) for question in ("What is the colour of the sky?", "Explain what a cat is.")),
    *((question, None, None) for question in ("How do I make tea?", "Write a short poem about the sea.")),
)
HELD_OUT = (
    ("What is 9*9?", "calculator", 81),
    ("How much is 250 / 5?", "calculator", 50),
    ("Compute 7 + 8 + 9", "calculator", 24),
    ("What does 1000 - 1 make?", "calculator", 999),
    ("I have 3 apples and buy 4 more, how many do I have?", "calculator", 7),
    ("Evaluate 2*(6+1)", "calculator", 14),
    ("What is the weather like in Rome?", "get_weather", ("Rome",)),
    ("Weather in Oslo please", "get_weather", ("Oslo",)),
    ("Do I need an umbrella in Dublin?", "get_weather", ("Dublin",)),
    ("How warm is it in Cairo?", "get_weather", ("Cairo",)),
    ("Get the weather of Los Angeles", "get_weather", ("Los Angeles",)),
    ("What time is it in Berlin?", "current_time", ("Europe/Berlin",)),
    ("Tell me the current time in Sydney", "current_time", ("Australia/Sydney",)),
    ("What is the date in Paris?", "current_time", ("Europe/Paris",)),
    ("How late is it in Chicago?", "current_time", ("America/Chicago",)),
    *((question, None, None) for question in ("Good morning!", "Who was Napoleon?", "Tell me about horses.")),
    *((question, None, None) for question in ("What is love?", "Can you help me with my homework?")),
)


async def ask(model: LocalModel, question: str, tools: tuple[ToolSpec, ...] = (), **options: int):
    request = ModelRequest(messages=(Message(role="user", content=question),), tools=tools, **options)
    async with aclosing(model.stream(request)) as stream:
        return [chunk async for chunk in stream]


def is_right(call, name, expected) -> bool:
    value = next(iter(json.loads(call.arguments).values()), "")
    if call.name != name:
        return False
    if isinstance(expected, tuple):
        return value in expected
    try:
        return abs(eval(value, {}) - expected) < 1e-9
    except (SyntaxError, NameError, TypeError):
        return False


async def count(model: LocalModel, title: str, questions) -> None:
    needed = valid = right = plain = 0
    for question, name, expected in questions:
        chunks = await ask(model, question, TOOLS, max_tokens=1)
        calls = [call for chunk in chunks for call in chunk.calls]
        good = not calls if name is None else bool(calls) and is_right(calls[0], name, expected)
        needed += name is not None
        valid += name is not None and bool(calls) and chunks[-1].finish_reason == "tool_calls"
        right += name is not None and good
        plain += name is None and good
        if not good:
            print(f"    missed: {question} -> {calls[0] if calls else 'words'}")
    spare = len(questions) - needed
    print(f"{title}: {needed} need a tool: {valid} valid, {right} right; {spare} need none: {plain} right")


async def main() -> None:
    model = LocalModel()
    for title in ("first start", "second start"):
        begun = time.perf_counter()
        await ask(model, "Hello!", max_tokens=1)
        print(f"{title} to first token: {time.perf_counter() - begun:.2f} s")
        await model.aclose()
    await ask(model, "Hello!", max_tokens=1)
    begun = time.perf_counter()
    chunks = await ask(model, "Write a poem about the sea.", max_tokens=200)
    tokens = chunks[-1].usage.output_tokens
    print(f"generation: {tokens / (time.perf_counter() - begun):.0f} tokens/s over {tokens} tokens")
    await count(model, "questions the prompts were chosen with", CHOSEN)
    await count(model, "questions written afterwards", HELD_OUT)
    await model.aclose()


if __name__ == "__main__":
    asyncio.run(main())
