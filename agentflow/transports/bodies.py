"""What clients send: one reader for every body and every query, and the models of what may stand in them.

It knows nothing of what is then done; what is wrong is told as `Refused`, never as an error of ours.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from agentflow.chain.request import AgentRequest
from agentflow.messages import clean_text
from agentflow.transports.refusals import Refused

MAX_BODY = 1024 * 1024  # bytes, where the client does not send the whole conversation
MAX_DEPTH = 64
MAX_KEYS = 1000  # of one object
MAX_DIGITS = 400  # of one number
BODY_SECONDS = 30.0  # in which a body has to be there
_AT_ONCE = 64 * 1024  # bytes that are read without a thread: they hold the loop up for a few milliseconds

M = TypeVar("M", bound=BaseModel)

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

Id = Annotated[str, Field(pattern=f"^{_ID.pattern}$")]
Text = Annotated[str, Field(min_length=1, max_length=256 * 1024)]
SessionId = Annotated[
    str | None,
    Field(
        validation_alias=AliasChoices("session_id", "sessionId"), description="Or `sessionId`; none is a new session."
    ),
]
UserId = Annotated[
    Id | None,
    Field(
        validation_alias=AliasChoices("user_id", "userId"),
        description="Or `userId`. Only where there are no keys: with them it is the key's.",
    ),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Identity(_Model):
    """Who asks, for what needs nothing else."""

    user_id: UserId = None


class Ask(Identity):
    """A message to an agent."""

    input: Annotated[Text, Field(validation_alias=AliasChoices("input", "message"), description="Or `message`.")]
    session_id: SessionId = None
    model: Annotated[str | None, Field(description="A model string, if the server allows it.")] = None
    agent: Annotated[str | None, Field(description="The name of an agent; the first one if left out.")] = None
    request_id: Annotated[Id | None, Field(description="Sent again with this id, it is the same run.")] = None
    detached: Annotated[bool, Field(description="Go on when nobody reads any more.")] = False

    def request(self, user_id: str | None) -> AgentRequest:
        """What the agent gets."""
        return AgentRequest(
            self.input, session_id=self.session_id, user_id=user_id, model=self.model, metadata=self.told_metadata
        )

    @property
    def told_metadata(self) -> dict[str, Any]:
        """What goes into the `input` event beside the message."""
        return {}


class AskBody(Ask):
    """A message to an agent, with what a query has no room for."""

    metadata: dict[str, Any] = {}

    @property
    def told_metadata(self) -> dict[str, Any]:
        """See `Ask`."""
        return self.metadata


class StreamQuery(Ask):
    """A message to an agent in an address, for EventSource."""

    format: Literal["simple", "events"] = "simple"
    ticket: str | None = None


class EventsQuery(Identity):
    """From where on a run is read."""

    after: Annotated[int | None, Field(ge=0, le=10**15 - 1, description="The number of the last event seen.")] = None
    format: Literal["simple", "events"] = "events"
    ticket: str | None = None


class Page(Identity):
    """Which part of a list: the newest first, `before` the number of the last one seen."""

    before: Annotated[int | None, Field(ge=0, le=10**15 - 1)] = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50


class Turns(Identity):
    """Which turns of a session: those after this number, the oldest first."""

    after: Annotated[int, Field(ge=0, le=10**15 - 1)] = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 50


class Answer(Identity):
    """The answer to a question of a run; to the only one if none is named."""

    text: Annotated[str, Field(max_length=256 * 1024)]
    question_id: str | None = None


class Approve(Identity):
    """Yes to a call; with the hash of its `approval` event only as long as it has these arguments."""

    call_id: str
    arguments_hash: str | None = None


class Reject(Identity):
    """No to a call."""

    call_id: str
    why: Annotated[str, Field(max_length=256 * 1024)] = ""


class Amend(Identity):
    """Other arguments for a call."""

    call_id: str
    arguments: dict[str, Any]


async def read_body(request: web.Request, model: type[M], limit: int = MAX_BODY) -> M:
    """The body, of at most `limit` bytes, as a `model`; it may be empty if no field is required.

    Raises `Refused` (400, 408, 413, 415).
    """
    data = await _bytes(request, limit)
    if not data and not any(field.is_required() for field in model.model_fields.values()):
        return model()
    _check_type(request)
    if len(data) > _AT_ONCE:
        return await asyncio.to_thread(_body, data, model)
    return _body(data, model)


def _body(data: bytes, model: type[M]) -> M:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise _bad("the body must be a JSON object")
    return validated(model, value, strict=True)


def read_query(request: web.Request, model: type[M]) -> M:
    """The query as a `model`. Raises `Refused` (400), also for a field that is there twice."""
    query = request.query
    for name in query:
        if len(query.getall(name)) > 1:
            raise _bad(f"the field {name[:140]!r} stands twice in the query")
    return validated(model, {name: clean_text(value) for name, value in query.items()}, strict=False)


def request_id(request: web.Request, ask: Ask) -> str | None:
    """The id by which the same request is known again: the field, else the header `Idempotency-Key`."""
    given = ask.request_id or request.headers.get("Idempotency-Key")
    if given is not None and not _ID.fullmatch(given):
        raise _bad("Idempotency-Key must be 1 to 128 letters, digits, hyphens and underscores")
    return given


def path_id(request: web.Request) -> str:
    """The id in the path; what cannot be one is as good as unknown."""
    return request.match_info["id"]


async def _bytes(request: web.Request, limit: int) -> bytes:
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise Refused(415, "media_type", "the body must not be compressed", {"Connection": "close"})
    too_large = Refused(413, "too_large", f"the body is over {limit} bytes", {"Connection": "close"})
    if (request.content_length or 0) > limit:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.content.iter_any():
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise too_large
    except TimeoutError:
        message = f"the body was not there within {BODY_SECONDS:g} s"
        raise Refused(408, "timeout", message, {"Connection": "close"}) from None
    except (web.RequestPayloadError, HttpProcessingError, ConnectionError):
        raise _bad("the body broke off, or is not what its headers say") from None
    return b"".join(pieces)


def _check_type(request: web.Request) -> None:
    charset = (request.charset or "utf-8").lower()
    if request.content_type != "application/json" or charset not in ("utf-8", "utf8"):
        raise Refused(415, "media_type", "the body must be 'Content-Type: application/json' in UTF-8")


def parse_json(data: bytes) -> Any:
    """The value of JSON from outside, its texts clean. Raises `Refused` (400).

    Refused are an object with a key that stands twice or with over 1,000, NaN and infinities, numbers of over 400
    digits or too large for a float, anything over 64 levels deep, and whatever is no UTF-8 or begins with a BOM.
    """
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_float,
        )
    except UnicodeDecodeError:
        raise _bad("the body is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _bad(f"the body is nested more than {MAX_DEPTH} levels deep") from None
    return _clean(value, 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _bad("the body has an object in which a key stands twice")
    if len(found) > MAX_KEYS:
        raise _bad(f"the body has an object with over {MAX_KEYS} keys")
    return found


def _constant(name: str) -> Any:
    raise _bad(f"{name} is not valid JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _bad(f"the body has a number of over {MAX_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise _bad("the body has a number that is too large")
    return number


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        raise _bad(f"the body is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    return {clean_text(key): _clean(item, depth + 1) for key, item in value.items()}


def validated(model: type[M], value: Mapping[str, Any], *, strict: bool) -> M:
    """The value as a `model`. Raises `Refused` (400) that names the first fault."""
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        raise _bad(_explained(model, error)) from None


def _explained(model: type[BaseModel], error: ValidationError) -> str:
    """One line on the first fault: the field, and what was expected of it."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"])[:140]
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        return f"field {name!r} is unknown, or stands here under its other name too; known are {known}"
    return f"field {name!r}: {first['msg']}"


def _bad(message: str) -> Refused:
    return Refused(400, "request", message)
