"""What the tests of the model clients share: one exchange with a provider that plays a script."""

import pytest

from agentflow.errors import ModelError
from agentflow.messages import Message
from agentflow.models.base import ModelChunk, ModelRequest
from agentflow.models.openai import OpenAIModel
from agentflow.testing.provider import FakeProvider

ASK = ModelRequest(messages=(Message(role="user", content="hello"),))
KEY = "sk-secret-0123456789"
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def model_at(provider: FakeProvider | str, **options) -> OpenAIModel:
    base_url = provider if isinstance(provider, str) else provider.base_url
    return OpenAIModel("fake", base_url=base_url, api_key=KEY, provider="acme", **options)


async def ask(model, request: ModelRequest = ASK) -> list[ModelChunk]:
    try:
        return [chunk async for chunk in model.stream(request)]
    finally:
        await model.aclose()


async def exchange(*scripts, request: ModelRequest = ASK, **options) -> list[ModelChunk]:
    async with FakeProvider(*scripts) as provider:
        return await ask(model_at(provider, **options), request)


async def failure(*scripts, **options) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await exchange(*scripts, **options)
    assert caught.value.provider == "acme"
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def text(chunks: list[ModelChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)
