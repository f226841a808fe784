"""What a run knows of its session, and what is kept of it: windows for its models, summaries and facts for later.

How much is shown, when turns are summarised and what a summary is worth is decided in `memory`; here is what it costs a
store and a model. Summaries are made beside a run and never fail it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

import msgspec

from agentflow.errors import AgentflowError
from agentflow.memory import MemoryPolicy, Window, due, summarise
from agentflow.memory.compression import cover
from agentflow.memory.facts import extract, relevant, supersede
from agentflow.memory.summary import Made
from agentflow.messages import Message
from agentflow.models.base import ChatModel, Tokenizer, estimate_message_tokens
from agentflow.stores.base import BusyPolicy, Fact, Session, SessionInfo, SessionKey, Store, Summary, Turn
from agentflow.streams import Clock

logger = logging.getLogger(__name__)

Told: TypeAlias = Callable[[Summary, int], bool]
AskModel: TypeAlias = Callable[[ChatModel, tuple[Message, ...]], Awaitable[str]]

_FACT_TOKENS = 500  # at most, of facts beside a question
_ATTEMPTS = 5  # at keeping a summary of a session to which turns are added meanwhile
_PAGE = 50  # turns read at a time
_UNTOLD = 100  # sessions whose summaries wait to be told


@dataclass(frozen=True, slots=True)
class Memory:
    """How the sessions of one agent are remembered. `context_tokens` is for models that do not say theirs, 0 for any.

    `summary_models` gives the models that summarise, None for the run's own.
    """

    store: Store
    clock: Clock
    count: Tokenizer
    policy: MemoryPolicy = field(default_factory=MemoryPolicy)
    busy: BusyPolicy = "queue"
    context_tokens: int = 0
    summary_models: Callable[[], tuple[ChatModel, ...]] | None = None
    at_work: set[SessionKey] = field(default_factory=set)  # sessions that are being compressed
    # What is to be told in the next run of a session, which its key and number name: the arguments of `told`.
    untold: dict[tuple[SessionKey, int], list[tuple[Summary, int]]] = field(default_factory=dict)

    async def open(self, key: SessionKey, run_id: str) -> Session:
        """Get hold of the session, with as many of its turns as can be shown."""
        last = None if self.policy.strategy == "full" else self.policy.turns
        return await self.store.open_session(key, run_id, busy=self.busy, last_turns=last)

    async def window(self, session: Session, question: str) -> Window:
        """What the run's models may be shown of the session."""
        facts: tuple[Fact, ...] = ()
        user_id = session.key.user_id
        if user_id is not None and self.policy.is_layered(session.version):
            known = await self.store.list_facts(user_id)
            facts = relevant(known, question, _FACT_TOKENS, self.count, self.policy.confidence)
        return Window(session, self.policy, self.tokens, facts)

    def tokens(self, message: Message) -> int:
        """What one message costs."""
        return estimate_message_tokens(message, self.count)

    def room(self, model: ChatModel) -> int:
        """The tokens that the model can read, 0 if that is not known."""
        own = getattr(model, "context_tokens", 0)
        return own if isinstance(own, int) and own > 0 else self.context_tokens

    # -- beside the run ----------------------------------------------------------------------------------

    def due(self, session: Session, window: Window, model: ChatModel) -> range | None:
        """The numbers of the turns that are to be summarised now; None for none, or if the session is at it already."""
        if session.key in self.at_work:
            return None
        room = self.room(model)
        shown = window.shown(room // 2) if room else None
        return due(self.policy, session.version, session.summaries, shown)

    async def compress(self, session: Session, turns: range, model: ChatModel, ask: AskModel, told: Told) -> None:
        """Summarise `turns`, and keep what was learnt from them. Errors of the store are logged, and it is due again.

        `ask` has a model answer; where that raises an `AgentflowError`, the turns are quoted. `told` gets each summary
        with the tokens of its turns, also those that are worth too little to be kept. Where it says that the run is
        over, they stay in `untold` for the session's next. Cancelling keeps what was kept so far, and it is due again.
        """
        self.at_work.add(session.key)
        try:
            await self._compress(session, turns, model, ask, told)
        except AgentflowError as error:
            logger.warning("session %s was not summarised: %s", session.key.session_id, error)
        except Exception:  # a store of the user's may raise anything
            logger.exception("session %s was not summarised", session.key.session_id)
        finally:
            self.at_work.discard(session.key)

    async def _compress(self, session: Session, numbers: range, model: ChatModel, ask: AskModel, told: Told) -> None:
        turns = await self._read(session.key, numbers)
        if len(turns) != len(numbers):  # deleted meanwhile
            return
        now = datetime.fromtimestamp(self.clock.wall(), UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        await self._learn(session, turns, numbers.start, now)
        made = await self._made(turns, numbers.start, model, ask)
        if made.error is not None:
            logger.warning("session %s was summarised without a model: %s", session.key.session_id, made.error)
        before = sum(self.tokens(message) for turn in turns for message in turn.messages)
        for summary in (*made.rejected, made.summary):
            if not told(summary, before):
                self.untold.setdefault((session.key, session.number), []).append((summary, before))
        for key in tuple(self.untold)[:-_UNTOLD]:  # the oldest: sessions that nobody comes back to
            del self.untold[key]
        await self._keep(session, msgspec.structs.replace(made.summary, created_at=now))

    async def _learn(self, session: Session, turns: Sequence[Turn], first: int, now: str) -> None:
        """Store what the turns say of the user: of those alone that no summary has, so that nothing deleted returns."""
        user_id = session.key.user_id
        if user_id is None:
            return
        covering = cover(session.summaries, self.policy.confidence)
        begin = max(first, covering[-1].last + 1) if covering else first
        found = extract(turns[begin - first :], begin, user_id, now)
        new = supersede(await self.store.list_facts(user_id, superseded=True), found)
        if new:
            await self.store.put_facts(new)

    async def _read(self, key: SessionKey, numbers: range) -> list[Turn]:
        turns: list[Turn] = []
        while len(turns) < len(numbers):
            page = await self.store.read_turns(
                key, numbers.start - 1 + len(turns), min(_PAGE, len(numbers) - len(turns))
            )
            if not page:
                break
            turns += page
        return turns

    async def _made(self, turns: list[Turn], first: int, model: ChatModel, ask: AskModel) -> Made:
        if self.summary_models is not None:
            model = self.summary_models()[0]
        room = self.room(model)

        def fits(messages: tuple[Message, ...]) -> bool:
            return not room or sum(map(self.tokens, messages)) <= room // 2

        return await summarise(turns, first, partial(ask, model), fits=fits, confidence=self.policy.confidence)

    async def _keep(self, session: Session, summary: Summary) -> None:
        """Keep the summary; turns that were added meanwhile do not change those it is made from."""
        seen: Session | SessionInfo | None = session
        for _ in range(_ATTEMPTS):
            if seen is None or seen.number != session.number or await self.store.keep_summary(seen, summary):
                return
            seen = await self.store.find_session(session.key)
