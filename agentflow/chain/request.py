"""What is asked of an agent: one message, checked before anything begins."""

import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypedDict

import msgspec

from agentflow.errors import ConfigError, RequestError
from agentflow.events import MAX_EVENT_BYTES, plain
from agentflow.messages import ImagePart, TextPart, clean_text, text_of

Input: TypeAlias = str | tuple[TextPart | ImagePart, ...]

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_REQUEST_BYTES = MAX_EVENT_BYTES - 4096  # what the `input` event has room for
_MAX_IMAGE_BYTES = 20 * 1024 * 1024  # of all pictures of one message, or of their addresses; they are in no event


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One message to an agent.

    `input` is a text, or text and pictures in order; events hold its text. An absent, blank or "null" `session_id`
    means a new session with a UUID. Ids match `[A-Za-z0-9_-]{1,128}`. `model` overrides the agent's own, `metadata`
    is JSON that goes into the `input` event and the tools' context; `agent` names one of several where a server has
    them.
    """

    input: Input
    session_id: str | None = None
    user_id: str | None = None
    model: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    agent: str | None = None

    @property
    def text(self) -> str:
        """The words of the input."""
        return self.input if isinstance(self.input, str) else text_of(self.input)

    def checked(self) -> "AgentRequest":
        """The request with its session id settled. Raises `RequestError` naming what is wrong."""
        content = _checked_input(self.input)
        if not isinstance(self.metadata, Mapping):
            raise RequestError(f"metadata must be a mapping, not {type(self.metadata).__name__}")
        checked = replace(self, input=content, metadata=plain(self.metadata), session_id=_session_id(self.session_id))
        if len(msgspec.json.encode((checked.text, checked.metadata))) > _MAX_REQUEST_BYTES:
            raise RequestError(f"input and metadata are over {_MAX_REQUEST_BYTES} bytes of JSON; send less")
        if self.model not in (None, "") and not is_model_string(self.model):
            raise RequestError(f"the model must be a short printable text, not {str(self.model)[:140]!r}")
        for name, value in (("session_id", checked.session_id), ("user_id", self.user_id)):
            if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
                raise RequestError(
                    f"{name} {str(value)[:140]!r} is not an id: 1 to 128 letters, digits, hyphens and underscores"
                )
        return checked


def is_model_string(value: Any) -> bool:
    """Whether `value` can be a model string at all; what it means is for `models.routing` to say."""
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


def _session_id(given: Any) -> Any:
    if given is None or (isinstance(given, str) and given.strip().lower() in ("", "null")):
        return str(uuid.uuid4())
    return given


def _checked_input(given: Any) -> Input:
    if isinstance(given, str):
        return clean_text(given)
    if not isinstance(given, list | tuple) or not all(map(_is_part, given)):
        raise RequestError(f"the input must be a text, or a tuple of TextPart and ImagePart, not {str(given)[:140]!r}")
    parts = tuple(TextPart(clean_text(part.text)) if isinstance(part, TextPart) else part for part in given)
    if sum(len(part.data) + len(part.url) for part in parts if isinstance(part, ImagePart)) > _MAX_IMAGE_BYTES:
        raise RequestError(f"the pictures of a message may have {_MAX_IMAGE_BYTES} bytes in all; send smaller ones")
    return parts


def _is_part(given: Any) -> bool:
    return isinstance(given, ImagePart) or (isinstance(given, TextPart) and isinstance(given.text, str))


class RequestFields(TypedDict, total=False):
    """The fields of an `AgentRequest` but its input."""

    session_id: str | None
    user_id: str | None
    model: str | None
    metadata: dict[str, Any]
    agent: str | None


def request_of(input: Input | AgentRequest, fields: RequestFields) -> AgentRequest:  # noqa: A002  the request's own name
    """The checked request for a text and its fields, or for a request. Raises `RequestError`."""
    if isinstance(input, AgentRequest):
        if fields:
            raise RequestError(f"give {', '.join(sorted(fields))} in the AgentRequest, not beside it")
        return input.checked()
    try:
        return AgentRequest(input, **fields).checked()
    except TypeError as error:
        known = ", ".join(name for name in AgentRequest.__dataclass_fields__ if name != "input")
        raise RequestError(f"{error}; a request has the fields {known}") from None


class ModelOptions(TypedDict, total=False):
    """What a request says beside its messages and tools; see `ModelRequest` for each."""

    seed: int
    stop: tuple[str, ...]
    tool_choice: str
    parallel_tool_calls: bool
    extra_body: dict[str, Any]


def checked_options(options: ModelOptions | None) -> dict[str, Any]:
    """The options as they go into a request. Raises `ConfigError` for a name or a stop that cannot be."""
    unknown = set(options or {}) - set(ModelOptions.__annotations__)
    if unknown:
        known = ", ".join(ModelOptions.__annotations__)
        raise ConfigError(f"model_options has no {', '.join(sorted(unknown))}; it has {known}")
    stop: Any = (options or {}).get("stop", ())
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise ConfigError(f"model_options: stop is a tuple of texts, not {stop!r}")
    return dict(options or {})


def checked_number(name: str, value: float | None, least: float) -> None:
    """Raise `ConfigError` unless `value` is None or a finite number of at least `least`."""
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value >= least):
        raise ConfigError(f"{name} is {value!r}; it must be a number of at least {least}")
