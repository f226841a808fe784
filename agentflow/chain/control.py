"""What humans decide about a run: answers, approvals, rejections, amendments. Each is checked, and counts once.

Decisions are events like all others; what follows from them is in `state`.
"""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from agentflow.chain.runtime import Runtime
from agentflow.errors import NotPendingError, RequestError, ToolArgumentsError
from agentflow.events import Decision, ResolvedEvent, plain
from agentflow.messages import clean_text
from agentflow.state import Call, RunState
from agentflow.stores.base import Letter
from agentflow.tools.approval import arguments_hash as hash_of
from agentflow.tools.resolvers import resolve

_MAX_TEXT = 256 * 1024  # characters of an answer or a reason


class Control:
    """The decisions of one run. Its methods may be called from any thread, and only make the event.

    `state` gives the accepted state, `runtime` and `header` what belongs to a chain.
    """

    def __init__(
        self,
        state: Callable[[], RunState],
        runtime: Callable[[str], Runtime],
        header: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._state = state
        self._runtime = runtime
        self._header = header
        self._decided: set[str] = set()  # decisions that the log may not have accepted yet
        self._lock = threading.Lock()

    def judge(self, letter: Letter) -> ResolvedEvent:
        """What a letter decides. Raises what the method for its verb does, and `RequestError` if there is none."""
        target, by = letter.target or "", letter.by
        match letter.verb:
            case "answer":
                return self.answer(letter.text, letter.target, by)
            case "approve":
                return self.approve(target, letter.arguments_hash, by)
            case "reject":
                return self.reject(target, letter.text, by)
            case "amend":
                return self.amend(target, letter.arguments or {}, by)
        raise RequestError(f"a letter decides to answer, approve, reject or amend, not to {letter.verb!r}")

    def answer(self, text: str, question_id: str | None, by: str | None) -> ResolvedEvent:
        """The answer to a question; to the only one if none is named. Raises `NotPendingError`."""
        state = self._state()
        asked = _questions(state)
        if question_id is None and len(asked) != 1:
            known = f"; these are: {', '.join(asked)}" if asked else ""
            raise self._not_pending(state, f"{len(asked)} questions, and the answer names none{known}")
        target = question_id if question_id is not None else next(iter(asked))
        if target not in asked:
            raise self._not_pending(state, f"no question {target!r}")
        return self._decide(asked[target], target, "answered", text=_checked_text(text), by=by)

    def has_question(self) -> bool:
        """Whether a question waits for an answer."""
        return bool(_questions(self._state()))

    def answer_next(self, text: str) -> ResolvedEvent:
        """The answer to the question that was asked first. Raises `NotPendingError` if there is none."""
        return self.answer(text, next(iter(reversed(_questions(self._state()))), None), None)

    def approve(self, call_id: str, arguments_hash: str | None, by: str | None) -> ResolvedEvent:
        """Yes to a call that waits for approval; with a hash, only if it is that of the arguments it waits with."""
        chain_id, call = self._waiting(call_id)
        expected = hash_of(call_id, call.call.name, call.arguments or {})
        if arguments_hash is not None and arguments_hash != expected:
            raise NotPendingError(
                f"call {call_id!r} does not wait for approval of arguments with the hash {arguments_hash[:80]!r}: its "
                "arguments are others by now; look at its approval event again"
            )
        return self._decide(chain_id, call_id, "approved", by=by)

    def reject(self, call_id: str, why: str, by: str | None) -> ResolvedEvent:
        """No to a call that waits for approval; the model is told why."""
        chain_id, _ = self._waiting(call_id)
        return self._decide(chain_id, call_id, "rejected", text=_checked_text(why), by=by)

    def expire(self, call_id: str) -> ResolvedEvent | None:
        """Nobody has decided in time; None if somebody has after all."""
        try:
            chain_id, _ = self._waiting(call_id)
            return self._decide(chain_id, call_id, "expired")
        except NotPendingError:
            return None

    def amend(self, call_id: str, arguments: Mapping[str, Any], by: str | None) -> ResolvedEvent:
        """Other arguments for a call that waits for approval, or that is running and is then begun again.

        Raises `NotPendingError`, and `ToolArgumentsError` for arguments that do not fit the tool.
        """
        state = self._state()
        chain_id, call = state.find_call(call_id) or ("", None)
        if call is None or call.status not in ("waiting", "running", "retrying"):
            raise self._not_pending(state, f"no call {call_id!r} that waits or runs")
        runtime = self._runtime(chain_id)
        tool = runtime.tools.get(call.call.name)
        if tool is None or tool.kind == "question":
            raise self._not_pending(state, f"no call {call_id!r} whose arguments can be amended")
        if not isinstance(arguments, Mapping):
            raise ToolArgumentsError(f"arguments of {tool.name} must be a mapping, not {type(arguments).__name__}")
        raw = json.dumps(plain(dict(arguments)), ensure_ascii=False)
        resolved, _ = resolve(tool, raw, resolvers=runtime.resolvers, mode=runtime.validation)
        waits = call.status == "waiting" and not call.attempt
        return self._decide(chain_id, call_id, "amended", arguments=resolved, by=by, once=waits)

    def pending(self) -> frozenset[str]:
        """The ids of the questions and calls that wait for a human."""
        state = self._state()
        return frozenset(_questions(state)) | {
            call.call.call_id for chain_id in state.open_chains() for call in _waiting_calls(state, chain_id)
        }

    def is_decided(self) -> bool:
        """Whether a decision was made that the run has not taken yet."""
        return not self._decided.isdisjoint(self.pending())

    def _waiting(self, call_id: str) -> tuple[str, Call]:
        state = self._state()
        chain_id, call = state.find_call(call_id) or ("", None)
        if call is None or call not in _waiting_calls(state, chain_id) or call.attempt:
            raise self._not_pending(state, f"no approval of call {call_id!r}")
        return chain_id, call

    def _decide(
        self, chain_id: str, target: str, decision: Decision, *, once: bool = True, **fields: Any
    ) -> ResolvedEvent:
        with self._lock:
            if once and target in self._decided:
                raise self._not_pending(self._state(), f"no decision on {target!r} any more: it was just made")
            if once:
                self._decided.add(target)
        header = dict(self._header(chain_id)) | {"iteration": self._state().chain(chain_id).iteration}
        return ResolvedEvent(target=target, decision=decision, **fields, **header)

    @staticmethod
    def _not_pending(state: RunState, what: str) -> NotPendingError:
        return NotPendingError(f"run {state.run_id!r} ({state.root.state}) waits for {what}")


def _waiting_calls(state: RunState, chain_id: str) -> list[Call]:
    return [call for call in state.chain(chain_id).open_calls() if call.status == "waiting" and call.child is None]


def _questions(state: RunState) -> dict[str, str]:
    """The questions that wait for an answer, each with its chain."""
    asked: dict[str, str] = {}
    for chain_id in state.open_chains():
        question = state.chain(chain_id).question
        if question is not None:
            asked[question] = chain_id
        asked |= {call.call.call_id: chain_id for call in _waiting_calls(state, chain_id) if call.attempt}
    return asked


def _checked_text(text: str) -> str:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise RequestError(f"expected a text of at most {_MAX_TEXT} characters, not {type(text).__name__}")
    return clean_text(text)
