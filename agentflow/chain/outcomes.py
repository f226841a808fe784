"""Effects that reach across runs: what was done under a user's idempotency key is never done again.

The index itself is the store's; which key a call has is in `tools.effects`.
"""

from typing import Any

from agentflow.chain.work import Work, text_of
from agentflow.errors import OutcomePendingError, StoreError
from agentflow.events import AgentEvent, ErrorInfo, ToolCompleteEvent, ToolErrorEvent, ToolStartEvent
from agentflow.stores.base import Outcome, OutcomeKey
from agentflow.tools.execution import ToolOutcome
from agentflow.tools.registry import Tool

_PENDING = (
    "an earlier call with the same idempotency key ({key}) was begun and its outcome is not known; it may have had its "
    "effect, so it was not run again. Say so, and do not claim that it was done"
)
_NOT_ASKED = (
    "an earlier attempt may have had its effect, and the index of outcomes could not be asked ({error}), so the call "
    "was not run again"
)


_WITHOUT_EFFECT = ("", "rate_limit")  # causes of failures in which the tool itself says that nothing was done


class Outcomes:
    """The outcomes of one chain's calls that have a key. A key is the user's: another user's same key is another."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._unsure: set[OutcomeKey] = set()  # an attempt under it failed, and may have had its effect all the same

    async def recall(self, tool: Tool, start: ToolStartEvent) -> AgentEvent | None:
        """The end of a call that must not be run: its deed was done, or may have been; None if it is to be run.

        Asked before every attempt, and claims the key for this call.
        """
        key = self._key(start)
        if key is None:
            return None
        fields = attempt_of(start) | self._work.header(start.iteration) | {"duration_ms": 0.0}
        try:
            done = await self._work.runtime.store.claim_outcome(key, self._claimant(start))
        except OutcomePendingError:
            return None if tool.idempotent else unknown_outcome(_PENDING.format(key=key.key[:100]), fields)
        except StoreError as error:
            if key in self._unsure:
                return unknown_outcome(_NOT_ASKED.format(error=text_of(error)), fields)
            await self._release(start, key)  # it may be claimed, and only the reply was lost
            message = f"the index of outcomes could not be asked, so the call was not run: {text_of(error)}"
            result = f"[error: {error.kind}]\n{message}"
            info = ErrorInfo(kind=error.kind, message=message)
            return ToolErrorEvent(status="error", error=info, result=result, **fields)
        if done is None:
            return None
        own = (done.run_id, done.call_id) == (self._work.info.run_id, start.call_id)
        first = None if own else done.call_id
        return ToolCompleteEvent(result=done.result, truncated=done.truncated, reused_from=first, **fields)

    async def keep(self, tool: Tool, start: ToolStartEvent, outcome: ToolOutcome) -> None:
        """Before anybody sees the end of an attempt: keep its outcome, or free the key where nothing was done.

        After a failure that may have had its effect the key of a tool that is not idempotent stays claimed, so that
        later calls are told of it. One that is idempotent is run again in any case.
        """
        key = self._key(start)
        if key is None:
            return
        if outcome.abandoned or outcome.status == "amended" or outcome.cause not in _WITHOUT_EFFECT:
            self.doubt(start)
        if outcome.ok:
            try:
                await self._work.runtime.store.keep_outcome(key, self._claimant(start), self._kept(start, outcome))
            except StoreError as error:
                self._warn(start, key, f"the outcome of {start.tool} was not kept: {text_of(error)}")
        elif tool.idempotent or key not in self._unsure:
            await self._release(start, key)

    def doubt(self, start: ToolStartEvent) -> None:
        """This attempt may have had its effect: from now on no failure frees its key."""
        key = self._key(start)
        if key is not None:
            self._unsure.add(key)

    async def _release(self, start: ToolStartEvent, key: OutcomeKey) -> None:
        try:
            await self._work.runtime.store.release_outcome(key, self._claimant(start))
        except StoreError as error:
            self._warn(start, key, f"the idempotency key of {start.tool} was not freed: {text_of(error)}")

    def _warn(self, start: ToolStartEvent, key: OutcomeKey, message: str) -> None:
        data = {"call_id": start.call_id, "tool": start.tool, "key": key.key[:200]}
        self._work.warn("outcome_not_kept", message, data)

    def _kept(self, start: ToolStartEvent, outcome: ToolOutcome) -> Outcome:
        run_id = self._work.info.run_id
        return Outcome(
            run_id=run_id,
            call_id=start.call_id,
            tool=start.tool,
            result=outcome.result,
            truncated=outcome.truncated,
        )

    def _claimant(self, start: ToolStartEvent) -> str:
        """The call among those of all runs: many providers number the calls of each reply from one."""
        return f"{self._work.info.run_id}:{start.call_id}"

    def _key(self, start: ToolStartEvent) -> OutcomeKey | None:
        """One user's key of one tool; without a user, one session's: what others did is not theirs to know."""
        tool = self._work.runtime.tools.get(start.tool)
        if start.idempotency_key is None or tool is None:
            return None
        session = self._work.info.session
        scope = session.user_id if session.user_id is not None else f"/{session.session_id}"  # no user has a "/"
        return OutcomeKey(tool=f"{tool.name} {tool.origin}", key=start.idempotency_key, user_id=scope)


def attempt_of(start: ToolStartEvent) -> dict[str, Any]:
    """What the events of one attempt have in common."""
    return {"call_id": start.call_id, "tool": start.tool, "attempt": start.attempt}


def unknown_outcome(message: str, fields: dict[str, Any]) -> ToolErrorEvent:
    """The end of a call of which nobody knows whether it was done."""
    error = ErrorInfo(kind="unknown_outcome", message=message)
    result = f"[error: unknown_outcome]\n{message}"
    return ToolErrorEvent(status="unknown_outcome", error=error, result=result, **fields)
