"""The client of every OpenAI-compatible `/chat/completions` endpoint, streaming or not.

It makes one request per call and repeats none. What it sends is made in `requests`, what comes is read in `parsing`,
which endpoint a model string means is in `routing`. No model or provider name has a meaning here.
"""

from collections.abc import AsyncGenerator, Mapping

import msgspec
from pydantic import SecretStr

from agentflow.messages import ToolSpec
from agentflow.models.base import CallRequest, ModelChunk, ModelRequest
from agentflow.models.http import Endpoint, Timeouts
from agentflow.models.parsing import ChatStreamParser, parse_completion
from agentflow.models.requests import chat_body, signed, strict_tools
from agentflow.models.strict import without_absent
from agentflow.settings import Profile


class OpenAIModel:
    """One model at one endpoint.

    `base_url` ends before `/chat/completions`. Connections are opened by the first call, kept, and closed by
    `aclose`; see `http.Endpoint`, also for `connections`. With `stream=False` the reply is asked for whole. `profile`
    is what the endpoint accepts.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: SecretStr | str | None = None,
        provider: str = "openai",
        stream: bool = True,
        timeouts: Timeouts | None = None,
        connections: int = 0,
        profile: Profile | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self.endpoint = Endpoint(
            base_url, api_key=api_key, provider=provider, timeouts=timeouts, connections=connections
        )
        self.profile = profile or Profile()
        self.context_tokens = self.profile.context_tokens
        self._asks_for_stream = stream

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, provider={self.provider!r}, base_url={self.endpoint.base_url!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """One call: text as it comes, at the end one chunk with calls, finish reason and usage.

        An unpaired history raises `ModelError` and is not sent. Closing the generator closes the connection.
        """
        strict = strict_tools(request, self.profile)
        provider = self.endpoint.provider
        body = chat_body(
            request,
            self.profile,
            model=self.name,
            provider=provider,
            stream=self._asks_for_stream,
            strict=strict,
        )
        loose = {tool.name: tool for tool in request.tools if tool.name in strict}
        exchange = await self.endpoint.open("POST", "/chat/completions", body)
        key = self.endpoint.key.get_secret_value()
        try:
            exchange.expect("text/event-stream", "application/json")
            if exchange.content_type == "application/json":
                last = parse_completion(await exchange.whole(), provider, secret=key)
            else:
                parser = ChatStreamParser(provider, secret=key)
                while data := await exchange.piece(parser):
                    for chunk in parser.feed(data):
                        yield chunk
                last = parser.finish()
            for chunk in last:
                chunk.calls = tuple(_loosened(call, loose) for call in chunk.calls)
                if chunk.provider_data is not None:
                    chunk.provider_data = signed(chunk.provider_data, provider)
                yield chunk
        finally:
            exchange.close()

    async def list_models(self) -> list[str]:
        """The names of the models that the endpoint offers, sorted. Raises `ModelError`."""
        return await self.endpoint.names("/models", "data", "id")

    async def aclose(self) -> None:
        """Close the connections of the running loop. The model may be used again; it then opens new ones."""
        await self.endpoint.aclose()


def _loosened(call: CallRequest, loose: Mapping[str, ToolSpec]) -> CallRequest:
    """The call as the tool's own schema has it, if the strict form was what the model saw."""
    tool = loose.get(call.name)
    if tool is None:
        return call
    return msgspec.structs.replace(call, arguments=without_absent(call.arguments, tool.parameters))
