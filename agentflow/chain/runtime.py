"""What an agent lends to its runs, and what makes one run that run. Plain data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from agentflow.bus import EventBus
from agentflow.chain.gates import Gate
from agentflow.chain.leases import Leases
from agentflow.chain.output import Output
from agentflow.chain.remembering import Memory
from agentflow.chain.request import Input
from agentflow.chain.tracing import RunTrace, SummaryCall
from agentflow.events import AgentEvent
from agentflow.messages import ImagePart, Message, TextPart, ToolSpec
from agentflow.models.base import ChatModel, Tokenizer, estimate_tokens
from agentflow.models.resilience import RetryPolicy
from agentflow.operators import MAX_BATCH_BYTES, WINDOW_SECONDS
from agentflow.state import Limits
from agentflow.stores.base import SessionKey, Store
from agentflow.streams import Clock, TaskOwner
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import DEFAULT_RESOLVERS, Mode, Resolver

Transform: TypeAlias = Callable[[AgentEvent], AgentEvent]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by all runs of one agent. `owner` owns the tasks that outlive a run's own, such as its writer.

    `timeout` is in seconds, for a whole run but its suspended time; `approval_timeout` after which an approval expires;
    `recovery` is what becomes of a run whose process died;
    `run_log_bytes` bounds the encoded events of one run. `request_options`
    are the fields of a `ModelRequest` besides messages and tools. `describe_tools` gives the tools as a model sees
    them and the estimate of their tokens. `summary_calls` are told of each model call for a summary when it has ended.
    """

    name: str
    instructions: str
    store: Store
    bus: EventBus
    tools: ToolRegistry
    describe_tools: Callable[[], tuple[tuple[ToolSpec, ...], int]]
    pools: Pools
    clock: Clock
    owner: TaskOwner
    leases: Leases
    memory: Memory
    limits: Limits = field(default_factory=Limits)
    timeout: float = 600.0
    approval_timeout: float = 86400.0
    recovery: Literal["resume", "fail"] = "resume"
    window: float = WINDOW_SECONDS
    max_batch_bytes: int = MAX_BATCH_BYTES
    run_log_bytes: int = 16 * 1024 * 1024
    request_options: Mapping[str, Any] = field(default_factory=dict)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    output: Output | None = None
    count_tokens: Tokenizer = estimate_tokens
    resolvers: Sequence[Resolver] = DEFAULT_RESOLVERS
    validation: Mode = "lenient"
    transforms: tuple[Transform, ...] = ()
    gate: Gate | None = None
    summary_calls: Sequence[Callable[[SummaryCall], None]] = ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One chain of a run: who asked what of which models, tried in turn; `text` is the words of `content`.

    The root chain's id is the run's, and it has no parent.
    """

    run_id: str
    session: SessionKey
    trace: RunTrace
    path: tuple[str, ...]
    text: str
    content: Input
    models: tuple[ChatModel, ...]
    model_name: str
    metadata: dict[str, Any]
    chain_id: str
    parent_chain_id: str | None = None

    def header(self) -> dict[str, Any]:
        """The common fields of this chain's events, but for `iteration` and what the writer stamps."""
        return {
            "run_id": self.run_id,
            "chain_id": self.chain_id,
            "parent_chain_id": self.parent_chain_id,
            "session_id": self.session.session_id,
            "path": self.path,
            "trace_id": self.trace.trace_id,
        }

    def with_pictures(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages of this turn, whose first has the pictures that events do not hold.

        Where a transform changed the words, these stand before the pictures: what it hid must not come back.
        """
        if isinstance(self.content, str) or not messages:
            return messages
        said = messages[0].text
        parts = (
            self.content
            if said == self.text
            else (TextPart(said), *(p for p in self.content if isinstance(p, ImagePart)))
        )
        return (msgspec.structs.replace(messages[0], content=parts), *messages[1:])
