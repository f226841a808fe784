"""Who asks: keys and tickets, and which hosts and origins are let in at all.

What a caller may see is decided where it is looked up; the user of a run is never taken from a model's arguments.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from agentflow.errors import ConfigError
from agentflow.settings import KeySettings, ServerSettings
from agentflow.streams import Clock
from agentflow.transports.refusals import Refused

Scope: TypeAlias = Literal["open", "user", "operator"]

TICKET_SECONDS = 30.0
_MAX_TICKETS = 10_000
_MAX_KEY = 512  # characters of what is taken for a key at all

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{1,5}))?")
_KEY = re.compile(r"af_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_NO_HASH = f"{'0' * 32}:{'0' * 64}"  # compared with where there is no such key, so that it takes as long

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Server": "agentflow",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. Without keys everybody is let in, as the user they name; `key_id` is then None."""

    user_id: str | None = None
    key_id: str | None = None
    scopes: frozenset[str] = frozenset({"user", "operator"})

    @property
    def sees_all(self) -> bool:
        """Whether runs of all users are to be seen: an operator's key."""
        return self.key_id is not None and "operator" in self.scopes

    def acting_for(self, user_id: str | None) -> "Caller":
        """The caller as the user that the request names. Raises `Refused` (403) if the key is another user's."""
        if user_id is None or user_id == self.user_id:
            return self
        if self.key_id is not None:
            raise Refused(
                403, "forbidden", f"this key does not stand for the user {user_id[:128]!r}; leave user_id out"
            )
        return Caller(user_id, None, self.scopes)


CALLER: web.RequestKey[Caller] = web.RequestKey("agentflow_caller", Caller)


def new_key() -> tuple[str, str, str]:
    """A new key: its id, the key itself, which is kept nowhere, and the hash that the settings get."""
    key_id = secrets.token_hex(6)
    key = f"af_{key_id}_{secrets.token_urlsafe(32)}"
    return key_id, key, _hashed(secrets.token_hex(16), key.encode())


def _hashed(salt: str, key: bytes) -> str:
    return f"{salt}:{hmac.new(bytes.fromhex(salt), key, hashlib.sha256).hexdigest()}"


class Keys:
    """The keys that are let in. `required` is whether there were any at the start: later on they may all be revoked."""

    def __init__(self, keys: Mapping[str, KeySettings]) -> None:
        self._keys = dict(keys)
        self.required = bool(keys)

    def caller(self, key: bytes) -> Caller | None:
        """Who has this key; None if nobody. It takes as long for a wrong key as for a right one."""
        match = _KEY.fullmatch(key.decode("ascii", "replace")) if len(key) <= _MAX_KEY else None
        key_id = match[1] if match else ""
        known = self._keys.get(key_id)
        expected = known.hash if known is not None else _NO_HASH
        given = _hashed(expected.partition(":")[0], key[:_MAX_KEY])
        if not hmac.compare_digest(given.encode(), expected.encode()) or known is None:
            return None
        return Caller(known.user, key_id, frozenset(known.scopes))

    def replace(self, keys: Mapping[str, KeySettings]) -> frozenset[str]:
        """Let in these instead; the ids of those that are not any more what they were."""
        gone = frozenset(key_id for key_id, key in self._keys.items() if keys.get(key_id) != key)
        self._keys = dict(keys)
        return gone


class Tickets:
    """What a browser shows where it cannot send a key: good for one request, and for 30 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def issue(self, caller: Caller) -> str:
        """A ticket for this caller. Over 10,000 of them the oldest are good no more."""
        ticket = secrets.token_urlsafe(32)
        self._issued[_digest(ticket)] = (self._clock.monotonic() + TICKET_SECONDS, caller)
        while len(self._issued) > _MAX_TICKETS:
            self._issued.popitem(last=False)
        return ticket

    def redeem(self, ticket: str) -> Caller | None:
        """Whose ticket it is; None for one that is unknown, used or too old."""
        expires, caller = self._issued.pop(_digest(ticket), (0.0, None))
        return caller if expires > self._clock.monotonic() else None

    def revoke(self, key_ids: frozenset[str]) -> None:
        """Tickets of these keys are good no more."""
        for digest, (_, caller) in list(self._issued.items()):
            if caller.key_id in key_ids:
                del self._issued[digest]


def _digest(ticket: str) -> bytes:
    # What is looked up is not what was sent, so that the time it takes tells nothing about tickets there are.
    return hashlib.sha256(ticket.encode("utf-8", "surrogatepass")).digest()


def authenticate(request: web.Request, keys: Keys, tickets: Tickets, scope: Scope) -> Caller:
    """Who sent the request: by `Authorization: Bearer`, else by the query's `ticket`.

    Raises `Refused`: 401 for whom nobody knows, 403 for who may not.
    """
    if not keys.required:
        return Caller()
    caller: Caller | None = None
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    kind, _, key = given.partition(b" ")
    if given:
        caller = keys.caller(key.strip()) if kind.lower() == b"bearer" else None
    elif "ticket" in request.query:
        caller = tickets.redeem(request.query["ticket"])
    if caller is None:
        raise Refused(
            401,
            "unauthorized",
            "send a key of this server as 'Authorization: Bearer af_...'",
            {"WWW-Authenticate": "Bearer"},
        )
    if scope != "open" and scope not in caller.scopes and not caller.sees_all:
        raise Refused(403, "forbidden", f"this needs a key with the scope {scope!r}")
    return caller


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` is reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, settings: ServerSettings) -> None:
    """Raise `ConfigError` where everybody on the network would be let in."""
    if not is_loopback(host) and not settings.keys:
        raise ConfigError(
            f"server.host {host!r} is reached from other machines, and there are no keys: make one with "
            "'agentflow keys new' and put it into the settings, or listen on 127.0.0.1"
        )


def check_host(request: web.Request, settings: ServerSettings) -> None:
    """Raise `Refused` (403) for a name that is not this server's: a page may have its own name point here.

    With keys any name will do, unless `allowed_hosts` has some.
    """
    match = _HOST.fullmatch(request.headers.get("Host", "").lower())
    allowed = {name.lower() for name in settings.allowed_hosts}
    if match and settings.keys and not allowed:
        return
    if match and ((match[1] or match[2]) in allowed or is_loopback(match[1] or match[2])):
        return
    raise Refused(403, "forbidden", "this host name is not this server's: server.allowed_hosts has those that are")


def allowed_origin(request: web.Request, settings: ServerSettings) -> str | None:
    """The foreign origin whose page sent the request, where it may; None if it is no foreign one.

    Raises `Refused` (403) for any other.
    """
    origin = request.headers.get("Origin")
    if origin is None or _is_own(origin, request.headers.get("Host", "")):
        return None
    if origin in settings.allowed_origins:
        return origin
    raise Refused(
        403, "forbidden", "pages of this origin may not use this server: server.allowed_origins has those that may"
    )


def check_site(request: web.Request, settings: ServerSettings) -> None:
    """Raise `Refused` (403) where a browser says that another site's page makes it ask, such as by an image."""
    site = request.headers.get("Sec-Fetch-Site", "none").lower()
    if site not in ("none", "same-origin") and request.headers.get("Origin") not in settings.allowed_origins:
        raise Refused(
            403, "forbidden", "pages of other sites may not use this server: server.allowed_origins has those that may"
        )


def _is_own(origin: str, host: str) -> bool:
    """Whether it is the origin of a page that this server, by that name, has given out."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and origin.lower() == f"{parts.scheme}://{host.lower()}"
