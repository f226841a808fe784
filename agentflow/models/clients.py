"""The model clients of one agent: made when a model string is first asked for, kept, and closed.

Which client a string means is in `routing`.
"""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

from agentflow.models.base import ChatModel, FunctionModel, StreamFunction
from agentflow.models.routing import resolve_chain
from agentflow.settings import Settings

_MAX_MODELS = 64  # clients kept for model strings that requests name


class ModelClients:
    """What an agent's `model` and its requests' model strings come to, each as the models to try in turn.

    `base_url` and `api_key` point model strings at an OpenAI-compatible server.
    """

    def __init__(
        self, model: str | ChatModel | StreamFunction | None, *, base_url: str | None, api_key: str | None
    ) -> None:
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._made: dict[str | None, tuple[ChatModel, ...]] = {}

    @property
    def name(self) -> str:
        """The agent's own model string, "" for none."""
        return self._model if isinstance(self._model, str) else ""

    def resolve(self, asked: str | None, settings: Callable[[], Settings]) -> tuple[ChatModel, ...]:
        """The models for a request that names `asked`, or none. Raises `ConfigError` for what no client can be made of.

        `settings` are only read where a model string is asked for.
        """
        if asked is None and self._model is not None and not isinstance(self._model, str):
            return (self._model if isinstance(self._model, ChatModel) else FunctionModel(self._model),)
        name = asked if asked is not None else self.name or None
        if name in self._made:
            self._made[name] = self._made.pop(name)  # the last asked for stands last
        else:
            chain = resolve_chain(name, settings(), base_url=self._base_url, api_key=self._api_key)
            self._made[name] = tuple(chain)
        return self._made[name]

    def superfluous(self, used: Iterable[ChatModel]) -> list[ChatModel]:
        """Forget the clients over the bound that have not been asked for the longest; the caller closes them.

        Users may name any number of models. Those in `used` stay.
        """
        busy = set(map(id, used))
        gone: list[ChatModel] = []
        for name in list(self._made)[:-_MAX_MODELS]:
            if busy.isdisjoint(map(id, self._made[name])):
                gone += self._made.pop(name)
        return gone

    async def aclose(self, *, given: bool = False) -> None:
        """Close the clients made here; with `given` also the model that was passed in as an object.

        All of them are closed, also if one raises.
        """
        models: list[object] = [model for chain in self._made.values() for model in chain]
        self._made.clear()
        async with AsyncExitStack() as closing:
            for model in (*models, *((self._model,) if given else ())):
                closing.push_async_callback(close, model)


async def close(model: object) -> None:
    """Close a model that has something to close."""
    aclose = getattr(model, "aclose", None)
    if aclose is not None:
        await aclose()
