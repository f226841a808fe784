"""The error tree: every exception that agentflow raises on purpose.

It does not translate foreign exceptions; the module that talks to a foreign library does that at its seam.

AgentflowError                  kind
├── ConfigError                 config
├── ModelError                  model
│   ├── ModelConnectionError    connection
│   ├── ModelTimeoutError       timeout
│   ├── ModelRateLimitError     rate_limit
│   ├── ModelStatusError        status
│   ├── ModelProtocolError      protocol
│   ├── ModelOutputError        output
│   ├── ModelUnavailableError   unavailable
│   └── ModelTruncatedError     truncated
├── ToolError                   tool
│   ├── ToolNotFoundError       not_found
│   ├── ToolArgumentsError      arguments
│   ├── ToolFailedError         failed
│   ├── ToolTimeoutError        timeout
│   └── ToolUnavailableError    unavailable
├── RequestError                request
├── StoreError                  store
│   ├── RunNotFoundError        run_not_found
│   ├── StoreFormatError        store_format
│   ├── LeaseLostError          lease_lost
│   └── OutcomePendingError     outcome_pending
├── SessionBusyError            busy
├── NotPendingError             not_pending
├── InvalidTransition           transition
├── LimitError                  limit
│   └── RateLimitedError        rate_limited
├── TransformError              transform
├── RunFailed                   (the kind of the run's `failed` event)
└── RunCancelled                cancelled

A leaf's kind is unique within its branch and never changes: it is what `failed.error.kind` and
`tool_error.error.kind` carry, so dashboards and clients may rely on it.
"""

import copy


class AgentflowError(Exception):
    """Root of the tree. `kind` is stable; `retryable` says whether the same call may succeed later."""

    kind: str = "error"
    retryable: bool = False


class ConfigError(AgentflowError):
    """A setting, model string, key or tool declaration is wrong; nothing was started."""

    kind = "config"


class ModelError(AgentflowError):
    """A model call failed. `provider` and the HTTP `status` are set where they are known.

    `retry_after` is what the provider's header asks for in seconds, None if it is absent or unreadable.
    """

    kind = "model"
    retry_after: float | None = None

    def __init__(self, message: str, *, provider: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status


class ModelConnectionError(ModelError):
    """The provider could not be reached, or the connection broke."""

    kind = "connection"
    retryable = True


class ModelTimeoutError(ModelError):
    """A limit (connect, first byte, gap between bytes, total) passed."""

    kind = "timeout"
    retryable = True


class ModelRateLimitError(ModelError):
    """The provider answered 429."""

    kind = "rate_limit"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status: int | None = 429,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, provider=provider, status=status)
        self.retry_after = retry_after


class ModelStatusError(ModelError):
    """The provider answered with an error status, or with an error object in a stream."""

    kind = "status"

    def __init__(self, message: str, *, provider: str | None = None, status: int | None = None) -> None:
        super().__init__(message, provider=provider, status=status)
        self.retryable = status is not None and status >= 500


class ModelProtocolError(ModelError):
    """The reply is not what the protocol allows: bytes that do not decode, a body of the wrong type."""

    kind = "protocol"


class ModelOutputError(ModelError):
    """The answer does not have the form that `Agent(output=...)` asks for, also after one correction."""

    kind = "output"


class ModelTruncatedError(ModelError):
    """The stream ended without a finish reason and without its end mark: the answer is incomplete."""

    kind = "truncated"
    retryable = True


class ModelUnavailableError(ModelError):
    """The provider has failed too often and is not called for now; `retry_after` says for how long."""

    kind = "unavailable"
    retryable = True


class ToolError(AgentflowError):
    """A tool call did not give a result. It becomes a `tool_error` event, never the end of a run."""

    kind = "tool"


class ToolNotFoundError(ToolError):
    """The model asked for a tool that does not exist."""

    kind = "not_found"


class ToolArgumentsError(ToolError):
    """The arguments do not fit the tool's schema; the body was not run."""

    kind = "arguments"


class ToolFailedError(ToolError):
    """The tool's body raised, or gave something that cannot be a result."""

    kind = "failed"


class ToolTimeoutError(ToolError):
    """The tool did not end within its time, waiting for a thread included."""

    kind = "timeout"


class ToolUnavailableError(ToolError):
    """The tool has failed too often and is not called for now."""

    kind = "unavailable"
    retryable = True


class RequestError(AgentflowError):
    """A request is malformed: an id, a text or a field that cannot be; nothing was started."""

    kind = "request"


class StoreError(AgentflowError):
    """The event log or session store failed; the run stays open until it is recovered."""

    kind = "store"
    retryable = True


class RunNotFoundError(StoreError):
    """No run with this id is known here."""

    kind = "run_not_found"
    retryable = False


class StoreFormatError(StoreError):
    """What is stored is damaged, of a newer version, or not ours; it was left as it is."""

    kind = "store_format"
    retryable = False


class LeaseLostError(StoreError):
    """This run is another owner's by now: nothing was written, and the old owner must stop."""

    kind = "lease_lost"
    retryable = False


class OutcomePendingError(StoreError):
    """Another call has claimed this idempotency key and has not said how it ended; the effect may have taken place."""

    kind = "outcome_pending"
    retryable = False


class SessionBusyError(AgentflowError):
    """Another run holds this session and its waiting line is full."""

    kind = "busy"
    retryable = True


class NotPendingError(AgentflowError):
    """An answer, approval, rejection or amendment names nothing that is waiting for one."""

    kind = "not_pending"


class InvalidTransition(AgentflowError):  # noqa: N818  the contract's name
    """An event is not allowed in this state; the event is dropped and the state stays as it is."""

    kind = "transition"


class LimitError(AgentflowError):
    """A configured limit was passed."""

    kind = "limit"


class RateLimitedError(LimitError):
    """It would be more than a limit of `limits.rates` allows just now, and nothing was done.

    `retry_after` is after how many seconds there is room again, None if there never is; for a place that others have
    taken it is a guess.
    """

    kind = "rate_limited"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retryable = retry_after is not None


class TransformError(AgentflowError):
    """A user's transform raised or changed something it may not; the run fails rather than leak."""

    kind = "transform"


class RunFailed(AgentflowError):  # noqa: N818  reads as the event it stands for
    """`chat()` or `reply()` of a run that ended `failed`. `kind` is the event's error kind."""

    def __init__(self, message: str, *, kind: str, run_id: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.run_id = run_id
        self.retryable = retryable


class RunCancelled(AgentflowError):  # noqa: N818  reads as the event it stands for
    """`chat()` or `reply()` of a run that ended `cancelled`. `reason` is the event's reason."""

    kind = "cancelled"

    def __init__(self, message: str, *, reason: str, run_id: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.run_id = run_id


def again(error: Exception) -> Exception:
    """The same error, to be raised to one more: raised itself, it would keep alive all that it was ever raised through.

    An error of somebody else's that cannot be copied is given as it is.
    """
    try:
        told = copy.copy(error)
    except Exception:  # noqa: BLE001  a foreign error may be made of anything
        return error.with_traceback(None)
    told.__cause__ = error.__cause__
    return told
