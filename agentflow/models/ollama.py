"""The client of Ollama's own `/api/chat`.

It makes one request per call and repeats none. What it sends is made in `requests`, what comes is read in
`ollama_parsing`. Ollama's OpenAI-compatible endpoint is one for `OpenAIModel`: its address ends in "/v1".
"""

from collections.abc import AsyncGenerator

from pydantic import SecretStr

from agentflow.models.base import ModelChunk, ModelRequest
from agentflow.models.http import Endpoint, Timeouts
from agentflow.models.ollama_parsing import OllamaStreamParser
from agentflow.models.requests import ollama_body, signed
from agentflow.settings import Profile


class OllamaModel:
    """One model at one Ollama server.

    `base_url` ends before `/api/chat`. Connections are opened by the first call, kept, and closed by `aclose`; see
    `http.Endpoint`, also for `connections`. With `stream=False` the reply is asked for whole. Ollama loads a model at
    its first call, which counts towards `timeouts.first_byte`.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str = "http://127.0.0.1:11434",
        api_key: SecretStr | str | None = None,
        provider: str = "ollama",
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
        return f"OllamaModel({self.name!r}, provider={self.provider!r}, base_url={self.endpoint.base_url!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """One call: text as it comes, at the end one chunk with calls, finish reason and usage.

        An unpaired history raises `ModelError` and is not sent. Closing the generator closes the connection.
        """
        provider = self.endpoint.provider
        body = ollama_body(request, self.profile, model=self.name, provider=provider, stream=self._asks_for_stream)
        exchange = await self.endpoint.open("POST", "/api/chat", body)
        try:
            exchange.expect("application/x-ndjson", "application/json")
            parser = OllamaStreamParser(provider, secret=self.endpoint.key.get_secret_value())
            while data := await exchange.piece(parser):
                for chunk in parser.feed(data):
                    yield chunk
            for chunk in parser.finish():
                if chunk.calls:  # the thinking that led to them is shown to it again
                    chunk.provider_data = signed(None, provider)
                yield chunk
        finally:
            exchange.close()

    async def list_models(self) -> list[str]:
        """The names of the models that the server has, sorted. Raises `ModelError`."""
        return await self.endpoint.names("/api/tags", "models", "name")

    async def aclose(self) -> None:
        """Close the connections of the running loop. The model may be used again; it then opens new ones."""
        await self.endpoint.aclose()
