"""The sections of the settings, and the kinds of value that stand in them.

Only what may be set, within which bounds, and what it means; where values come from is in `loading`.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEN_YEARS = 10 * 365 * 86400.0  # seconds: a date that every calendar has
_LARGEST = 2**63 - 1  # what fits everywhere a number goes, such as a request


def _seconds(value: Any) -> Any:
    """A duration in seconds from "30s", "5m", "24h", "250ms", "7d" or a number."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    number = text.rstrip("dhms")
    try:
        return float(number) * _SECONDS[text[len(number) :] or "s"]
    except (ValueError, KeyError):
        raise ValueError(f"expected seconds or a duration such as '30s', '5m' or '24h', not {value!r}") from None


def _names(value: Any) -> Any:
    """A list of names, from the environment also as one text: with commas, or a JSON list."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [name.strip() for name in value.split(",") if name.strip()]
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"expected names with commas between them, or a JSON list, not {value!r}") from None


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0, le=_LARGEST)]
CountFromZero = Annotated[int, Field(ge=0, le=_LARGEST)]
Rate = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}/[smhd]$")]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]

_OF_RUNS = frozenset({"requests", "tokens", "calls", "concurrent"})
_OF_CALLS = frozenset({"requests", "tokens", "concurrent"})

# What can be limited, by whom it is limited for.
_RATED = {
    "all": _OF_RUNS,
    "user": _OF_RUNS,
    "agent": _OF_RUNS,
    "provider": _OF_CALLS,
    "model": _OF_CALLS,
    "tool": _OF_CALLS - {"tokens"},
    "key": _OF_CALLS | {"connections"},
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RetrySettings(_Section):
    """How a failed model call is repeated: see `models.resilience.RetryPolicy`. The times are in seconds."""

    attempts: Count = 3
    base: Duration = 0.5
    cap: Duration = 8.0
    retry_after_cap: Duration = 30.0


class ModelSettings(_Section):
    """Which model is used and how long it may take; the times are in seconds.

    `allowed` are patterns such as "openai/*" for what model strings may come to, aliases resolved; empty allows all.
    `degraded` is what a user is told when every model has failed, "" for a failed run. `local_path` is a GGUF file
    that the local model uses instead of its own. `connect_timeout` is for one attempt to connect,
    `first_byte_timeout` from the request to the first byte of the reply, `idle_timeout` between two pieces of it,
    `total_timeout` for the whole call.
    """

    default: str | None = None
    allowed: Names = ()
    retries: RetrySettings = RetrySettings()
    temperature: Annotated[float, Field(allow_inf_nan=False)] | None = None
    max_tokens: Count | None = None
    local_path: Path | None = None
    degraded: str = ""
    connect_timeout: Duration = 5.0
    first_byte_timeout: Duration = 30.0
    idle_timeout: Duration = 30.0
    total_timeout: Duration = 300.0


class Profile(_Section):
    """What an endpoint accepts. The defaults fit most servers that are compatible with OpenAI's.

    `reasoning_content` says beside which calls that field goes back: "never", "given" where the server gave one,
    "loop" the same but only since the last user message, "always" beside every call, "" if none was given.
    `reasoning_details` go back verbatim or not at all. `empty_content` is the content of a message that has only
    calls. `call_ids` are sent as they are, or mapped where they are not "short" (at most 40 letters, digits, "_" and
    "-") or not "nine" letters and digits. With `strict_tools` schemas are sent in OpenAI's strict form if they have
    one. An answer's schema is sent as `structured_output` says; where that has no place for it, the system message
    tells it. `context_tokens` is what its models can read at once, 0 if that is not known. What is not accepted is left
    out.
    """

    reasoning_content: Literal["never", "given", "loop", "always"] = "given"
    reasoning_details: bool = True
    empty_content: Literal["null", "text"] = "null"
    call_ids: Literal["any", "short", "nine"] = "any"
    strict_tools: bool = False
    structured_output: Literal["json_schema", "json_object", "none"] = "json_schema"
    developer_role: bool = False
    temperature: bool = True
    stream_options: bool = True
    parallel_tool_calls: bool = True
    context_tokens: CountFromZero = 0
    max_tokens_field: str = "max_tokens"
    seed_field: str = "seed"


class ProviderSettings(_Section):
    """A provider of our own, or what is different about a known one.

    `region` picks one of a preset's other addresses; `profile` names only what differs from the preset's.
    """

    base_url: str | None = None
    region: str | None = None
    api_key: SecretStr | None = None
    default_model: str | None = None
    profile: Profile = Profile()


class ToolSettings(_Section):
    """Packages whose tools are offered, and whether a model's notation is corrected ("lenient") or refused.

    A model is told of calls it has got wrong in at most `corrections` rounds in a row, `corrections_in_all` of a run.
    """

    packages: Names = ()
    validation: Literal["lenient", "strict"] = "lenient"
    corrections: CountFromZero = 3
    corrections_in_all: CountFromZero = 8


class PoolSettings(_Section):
    """A pool of threads for tools: how many run at once, how many wait before calls are refused."""

    size: Count = 64
    queue: CountFromZero = 256


class ChainSettings(_Section):
    """Bounds of one run, with the agents below it; times in seconds, `token_budget` 0 for any number.

    `max_round_calls` tool calls of one reply are run, `max_tool_calls` of a run. `approval_timeout` is how long a call
    waits for a human's approval; the time in which a run waits for humans does not count in its `timeout`. A run whose
    process died goes on (`resume`) or ends `failed(crashed)`, by `recovery`.
    """

    max_iterations: Count = 15
    max_parallel_tools: Count = 16
    max_round_calls: Count = 128
    max_tool_calls: Count = 100
    token_budget: CountFromZero = 0
    timeout: Duration = 600.0
    approval_timeout: Annotated[Duration, Field(le=_TEN_YEARS)] = 86400.0
    recovery: Literal["resume", "fail"] = "resume"


class MemorySettings(_Section):
    """Where runs and sessions are kept, and what of a session a model is shown.

    `store` None is the library's in memory, the command line's and a server's in a SQLite file; `url` is the file, or
    the server of a Redis store. For `strategy`, `turns`, `layered_from` and `confidence` see `memory.MemoryPolicy`;
    `ttl` is how long finished runs and sessions are kept. Summaries are made by `summary_model`, or else by the run's
    own; `context_tokens` bounds what a model is sent where it does not say itself how much it can read, 0 for any.
    """

    store: Literal["in_memory", "sqlite", "redis"] | None = None
    url: str | None = None
    strategy: Literal["full", "rolling", "layered"] = "rolling"
    turns: Count = 12
    layered_from: Count = 36
    ttl: Duration = 86400.0
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.6
    summary_model: str | None = None
    context_tokens: CountFromZero = 0


class SessionSettings(_Section):
    """What becomes of a message to a session whose run is under way: it waits, is refused, or ends that run."""

    busy: Literal["queue", "reject", "supersede"] = "queue"


class FlowSettings(_Section):
    """How deltas are joined: for at most `window_ms` milliseconds or `max_bytes` bytes of UTF-8.

    With the mode "batch" a client gets the events of a window as one frame with an array, else a frame for each.
    """

    window_ms: Count = 200
    max_bytes: Count = 512 * 1024
    mode: Literal["single", "batch"] = "single"


class KeySettings(_Section):
    """A key of the server, as `agentflow keys new` prints it: its hash, the user it stands for, and what it may do."""

    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{32}:[0-9a-f]{64}$")]
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    scopes: Annotated[tuple[Literal["user", "operator"], ...], NoDecode, BeforeValidator(_names)] = ("user",)


class ServerSettings(_Section):
    """Where agents are served, and to whom; times in seconds.

    Without `keys` everybody who reaches the address may use them, so it has to be of this machine. `allowed_hosts` are
    names by which it is reached besides those of this machine; `allowed_origins`, such as "https://chat.example.org",
    are other sites whose pages may use it. A run whose last reader has left is cancelled after `grace`. A silent stream
    gets a sign of life every `ping`; a reader that takes nothing for `stall` is dropped. Runs get `shutdown_grace` to
    end when the server is told to. `max_body` are the bytes of a request whose client sends the whole conversation, as
    those of OpenAI and AG-UI do; others may have 1 MiB.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    keys: dict[str, KeySettings] = {}
    allowed_hosts: Names = ()
    allowed_origins: Names = ()
    grace: Duration = 30.0
    ping: Duration = 15.0
    stall: Duration = 15.0
    shutdown_grace: Duration = 10.0
    max_body: Count = 16 * 1024 * 1024


class TelemetrySettings(_Section):
    """What is told of runs to those who operate them.

    `metrics` are what `/metrics` gives, if the extra `prometheus` is installed; `semconv` says after which release of
    OpenTelemetry's conventions for generative AI what has a name there is named. `logs` is the form of the log that
    `agentflow serve` writes on standard error; without `log_content` no words of users, models and tools stand in it.
    With `traces` the server sends spans over OTLP, to where OpenTelemetry's own variables say.
    """

    semconv: Literal["0.1.0", "1.41", "both"] = "0.1.0"
    metrics: bool = True
    traces: bool = False
    logs: Literal["json", "console", "off"] = "console"
    log_content: bool = False


class RateSettings(_Section):
    """One limit: for whom, and how much of what; what is left out is not limited.

    `per` says who has it each for itself: every user, agent, provider, "provider/model", tool or key of the server, or
    "all" together. `only` are patterns for those it is for. Rates are written as "60/m": so many at once, and as many
    in a second, minute, hour or day (s, m, h, d).

    `requests` are runs that begin, calls of a provider, model or tool, and what a client with a key sends; `tokens`
    those that models read and write; `calls` those of tools in the runs of a user or agent. `concurrent` is how many
    of these runs or calls there may be at a time, `connections` how many open requests of a key.
    """

    per: Literal["all", "user", "agent", "provider", "model", "tool", "key"]
    only: Names = ()
    requests: Rate | None = None
    tokens: Rate | None = None
    calls: Rate | None = None
    concurrent: CountFromZero = 0
    connections: CountFromZero = 0

    @model_validator(mode="after")
    def _limits_what_it_can(self) -> Self:
        given = {name for name in _RATED["all"] | _RATED["key"] if getattr(self, name)}
        if unfit := given - _RATED[self.per]:
            raise ValueError(f"{', '.join(sorted(unfit))} cannot be limited per {self.per}")
        if not given:
            raise ValueError(f"nothing is limited: set one of {', '.join(sorted(_RATED[self.per]))}")
        return self


class BreakerSettings(_Section):
    """When a provider or tool that fails is not called for a while: see `observability.breaker.BreakerPolicy`.

    `window` is the number of its last calls that count, 0 for no breakers; the times are in seconds.
    """

    window: CountFromZero = 0
    minimum: Count = 10
    failures: Annotated[float, Field(gt=0, le=1)] = 0.5
    slow: Annotated[float, Field(gt=0, le=1)] = 0.8
    slow_after: Duration = 30.0
    open_for: Duration = 30.0
    probes: Count = 2


class LimitSettings(_Section):
    """What may be taken up: `run_log_bytes` by the log of one run; `connections` to one model at once, 0 for any.

    `rates` are limits by name. What is over one waits for at most `wait` seconds, `waiting` at a time, and is then
    refused. Without `url` each process counts for itself, else all on that Redis server; while it does not answer, each
    does again ("local"), or nothing is let through ("refuse"), by `when_down`.
    """

    run_log_bytes: Count = 16 * 1024 * 1024
    connections: CountFromZero = 0
    rates: dict[str, RateSettings] = {}
    wait: Duration = 10.0
    waiting: Count = 1000
    url: str | None = None
    when_down: Literal["local", "refuse"] = "local"
    breaker: BreakerSettings = BreakerSettings()
