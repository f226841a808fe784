"""The machine and the laws of a log, driven together by Hypothesis against a small independent oracle."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agentflow.errors import InvalidTransition
from agentflow.events import EventType, State
from agentflow.messages import Message, unpaired
from agentflow.state import TABLE, CallModel, Notice, kept_messages, turn_messages
from agentflow.testing import assert_laws, check_laws
from tests import builders as b

SORRY = "Not now."
hits = Counter()  # (state, event type, next state), over all examples and the directed runs below


class Oracle:
    """What must be true, kept by other means than the machine: open calls as sets, and one word for the phase."""

    def __init__(self):
        self.phase, self.iteration, self.attempt, self.said = "idle", 0, 0, ""
        self.unstarted, self.running, self.waiting, self.attempts = set(), set(), set(), {}

    @property
    def calls(self):
        return self.unstarted | self.running | self.waiting

    @property
    def expected(self):
        if self.phase != "tools":
            return {"model": State.AWAITING_MODEL, "asked": State.SUSPENDED}.get(self.phase) or State(self.phase)
        return State.EXECUTING_TOOLS if self.calls - self.waiting else State.SUSPENDED

    def close(self, call_id):
        self.running.discard(call_id)
        self.waiting.discard(call_id)
        if not self.calls:
            self.phase = "thinking"


class Run(RuleBasedStateMachine):
    """Events as the chain, users and time may send them; each rule offers one that is allowed now."""

    def __init__(self):
        super().__init__()
        self.fold = b.Fold(max_iterations=4, degraded=SORRY)
        self.oracle = Oracle()
        self.number = 0
        self.whole = False

    def add(self, event):
        before = self.fold.state.root.state
        self.fold.add(event)
        hits[before, event.type, self.fold.state.root.state] += 1

    @property
    def phase(self):
        return self.oracle.phase

    @property
    def is_answered(self):
        root = self.fold.state.root
        return self.phase == "thinking" and bool(root.rounds) and root.round.complete and not root.round.calls

    def is_open(self):
        return self.phase not in ("completed", "failed", "cancelled")

    @precondition(lambda self: self.phase == "idle")
    @rule()
    def begin(self):
        self.add(b.begin())
        self.oracle.phase = "thinking"

    @precondition(lambda self: self.phase == "thinking" and self.oracle.iteration < 4)
    @rule()
    def start_model(self):
        o = self.oracle
        o.phase, o.iteration, o.attempt, o.said, self.whole = "model", o.iteration + 1, 1, "", False
        self.add(b.model_start(o.iteration))

    @precondition(lambda self: self.phase == "model")
    @rule(text=st.text(min_size=1, max_size=3), channel=st.sampled_from(["answer", "reasoning"]))
    def say(self, text, channel):
        o = self.oracle
        self.add(b.delta(text, o.iteration, o.attempt, channel=channel))
        o.said += text if channel == "answer" else ""

    @precondition(lambda self: self.phase == "model")
    @rule(reason=st.sampled_from(["retry", "fallback", "crashed", "amended"]))
    def roll_back(self, reason):
        o = self.oracle
        self.add(b.rollback(o.iteration, o.attempt, reason))
        for void in (b.delta("x", o.iteration, o.attempt), b.rollback(o.iteration, o.attempt)):
            with pytest.raises(InvalidTransition):
                self.fold.add(void)
        o.attempt, o.said = o.attempt + 1, ""
        self.add(b.model_start(o.iteration, o.attempt))

    @precondition(lambda self: self.phase == "model")
    @rule(count=st.integers(0, 3))
    def complete_model(self, count):
        o, ids = self.oracle, [f"c{self.number + n}" for n in range(count)]
        self.number += count
        self.add(b.model_complete(*ids, iteration=o.iteration))
        o.unstarted, o.attempts, self.whole = set(ids), dict.fromkeys(ids, 0), True
        o.phase = "thinking"
        if ids:  # the first is told with the reply
            self.begin_call(ids[0])

    @precondition(lambda self: self.phase == "model")
    @rule(now=st.sampled_from([True, *[False] * 3]))
    def fail_for_good(self, now):
        o = self.oracle
        if not now:
            return
        self.add(b.model_complete(iteration=o.iteration, finish_reason="error"))
        assert self.fold.commands == (Notice("r", SORRY, "degraded"),)
        before = turn_messages(self.fold.state.root)
        o.iteration, o.said = o.iteration + 1, SORRY
        self.add(b.delta(SORRY, o.iteration))
        self.add(b.final(self.fold.state, "degraded"))
        o.phase = "completed"
        # What the failed round had said is in no message, and all that stood before it is.
        after = kept_messages(self.fold.state.root)
        said = before[:-1] if before[-1].role == "assistant" else before
        assert after == (*said, Message(role="assistant", content=SORRY))

    @precondition(lambda self: self.is_answered and self.oracle.iteration < 4)
    @rule()
    def correct(self):
        o = self.oracle
        self.add(b.output_invalid(o.iteration, "Answer again."))
        assert self.fold.commands == (CallModel("r", iteration=o.iteration + 1),)
        assert turn_messages(self.fold.state.root)[-1] == Message(role="user", content="Answer again.")
        self.start_model()

    def begin_call(self, call_id):
        o = self.oracle
        o.attempts[call_id] += 1
        o.phase = "tools"
        o.unstarted.discard(call_id)
        o.running.add(call_id)
        self.add(b.tool_start(call_id, o.iteration, o.attempts[call_id]))

    @precondition(lambda self: self.phase == "tools" and self.oracle.unstarted)
    @rule(data=st.data(), ask=st.booleans())
    def start_tool(self, data, ask):
        o = self.oracle
        call_id = data.draw(st.sampled_from(sorted(o.unstarted)))
        if ask and not o.attempts[call_id] and self.fold.state.root.find(call_id).status == "ready":
            self.add(b.approval(call_id, o.iteration))
            o.unstarted.discard(call_id)
            o.waiting.add(call_id)
        elif o.expected is State.EXECUTING_TOOLS:
            self.begin_call(call_id)

    @precondition(lambda self: self.phase == "tools" and self.oracle.running)
    @rule(data=st.data(), how=st.sampled_from(["delta", "complete", "error", "timeout", "retry", "question"]))
    def tool(self, data, how):
        o = self.oracle
        call_id = data.draw(st.sampled_from(sorted(o.running)))
        at = (call_id, o.iteration, o.attempts[call_id])
        if how == "delta":
            self.add(b.tool_delta(call_id, "x", *at[1:]))
        elif how == "complete":
            self.add(b.tool_complete(*at))
            o.close(call_id)
        elif how == "question":
            self.add(b.question(call_id, o.iteration))
            o.running.discard(call_id)
            o.waiting.add(call_id)
        elif how == "retry":
            self.add(b.tool_error(*at, will_retry=True))
            o.running.discard(call_id)
            o.unstarted.add(call_id)
        else:
            self.add(b.tool_error(*at, status=how))
            o.close(call_id)

    @precondition(lambda self: self.phase == "tools" and self.oracle.waiting)
    @rule(data=st.data(), decision=st.sampled_from(["approved", "rejected", "amended", "expired"]))
    def decide(self, data, decision):
        o = self.oracle
        call_id = data.draw(st.sampled_from(sorted(o.waiting)))
        o.waiting.discard(call_id)
        if o.attempts[call_id]:  # a question of a running tool: the answer is its result
            self.add(b.resolved(call_id, "answered", o.iteration, "yes"))
            self.add(b.tool_complete(call_id, o.iteration, o.attempts[call_id]))
            o.close(call_id)
            return
        self.add(b.resolved(call_id, decision, o.iteration))
        self.begin_call(call_id)
        if decision in ("rejected", "expired"):
            self.add(b.tool_error(call_id, o.iteration, 1, "rejected"))
            o.close(call_id)

    @precondition(lambda self: self.phase == "thinking" and self.whole and not self.oracle.calls)
    @rule()
    def ask_in_text(self):
        self.add(b.question("q", self.oracle.iteration))
        self.oracle.phase = "asked"

    @precondition(lambda self: self.phase == "asked")
    @rule()
    def answer(self):
        self.add(b.resolved("q", "answered", self.oracle.iteration, "the first"))
        self.oracle.phase = "thinking"

    @precondition(is_open)
    @rule(event=st.sampled_from([b.warning, b.summary]))
    def note(self, event):
        if self.phase != "idle":
            self.add(event(self.oracle.iteration))

    @precondition(lambda self: self.phase == "thinking" and self.whole and not self.oracle.calls)
    @rule(notice=st.booleans())
    def finish(self, notice):
        o = self.oracle
        if notice:
            o.iteration, o.said = o.iteration + 1, "that is all"
            self.add(b.delta(o.said, o.iteration))
        self.add(b.final(self.fold.state))
        o.phase = "completed"
        assert self.fold.log[-1].text == o.said

    @precondition(is_open)
    @rule(event=st.sampled_from([b.failed, b.cancelled]), now=st.sampled_from([True, *[False] * 7]))
    def end(self, event, now):
        o = self.oracle
        if not now:
            return
        for call_id in sorted(o.calls):
            if call_id not in o.running and not (call_id in o.waiting and o.attempts[call_id]):
                o.attempts[call_id] += 1
                self.add(b.tool_start(call_id, o.iteration, o.attempts[call_id]))
            self.add(b.tool_error(call_id, o.iteration, o.attempts[call_id], "cancelled"))
            assert self.fold.commands == ()
        self.add(event(o.iteration))
        o.phase = event(0).type.value

    @precondition(lambda self: not self.is_open())
    @rule(event=st.sampled_from([b.begin(), b.warning(), b.delta("x"), b.model_start(), b.failed(), b.cancelled()]))
    def nothing_follows_the_end(self, event):
        before = self.fold.state
        with pytest.raises(InvalidTransition):
            self.fold.add(event)
        assert self.fold.state is before

    @invariant()
    def the_oracle_agrees_and_the_laws_hold(self):
        root = self.fold.state.root
        assert root.state is self.oracle.expected
        if root.rounds and self.phase not in ("idle",):
            assert root.iteration == self.oracle.iteration
            assert root.round.text == self.oracle.said
        assert check_laws(self.fold.log, ended=False) == []

    def teardown(self):
        if self.phase == "idle":
            return
        if self.is_open():
            self.end(b.cancelled, now=True)
        assert_laws(self.fold.log)
        kept = kept_messages(self.fold.state.root)
        assert unpaired(kept) is None
        assert [message.role for message in kept[-1:]] in ([], ["assistant"])


def test_any_sequence_of_allowed_events_keeps_the_laws():
    run_state_machine_as_test(
        Run,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


ROUND = (b.begin(), b.model_start())
CALLS = (*ROUND, b.model_complete("c1", "c2"))
DIRECTED = {
    "cancelled before it began": [b.cancelled(0)],
    "failed before it began": [b.failed(0)],
    "notes": [b.warning(0), b.summary(0), *ROUND[:1], b.warning(0), b.summary(0), b.model_start(),
              b.warning(), b.summary()],
    "failed while thinking": [b.begin(), b.failed(0)],
    "cancelled while thinking": [b.begin(), b.cancelled(0)],
    "failed by the model": [*ROUND, b.failed()],
    "cancelled in the model": [*ROUND, b.delta("x"), b.cancelled()],
    "retried": [*ROUND, b.model_start(attempt=2), b.delta("x", attempt=2), b.rollback(attempt=2),
                b.model_start(attempt=3)],
    "asked in text": [*ROUND, b.model_complete(), b.question("q"), b.warning(), b.summary(),
                      b.resolved("q", "answered")],
    "failed while asked": [*ROUND, b.model_complete(), b.question("q"), b.failed()],
    "cancelled while asked": [*ROUND, b.model_complete(), b.question("q"), b.cancelled()],
    "told by the framework": [*ROUND, b.model_complete(), b.delta("x", 2)],
    "all wait": [*CALLS, b.approval("c1"), b.approval("c2"), b.resolved("c1", "approved"), b.tool_start("c1"),
                 b.question("c1"), b.tool_start("c2"), b.tool_error("c2", status="cancelled"),
                 b.tool_error("c1", status="cancelled"), b.cancelled()],
    "one waits": [*CALLS, b.tool_start("c1"), b.approval("c2"), b.warning(), b.summary(), b.tool_delta("c1"),
                  b.tool_complete("c1"), b.resolved("c2", "approved"), b.tool_start("c2"), b.tool_error("c2")],
    "one fails, one waits": [*CALLS, b.tool_start("c1"), b.approval("c2"), b.tool_error("c1")],
    "asks beside another": [*CALLS, b.tool_start("c1"), b.tool_start("c2"), b.question("c1"),
                            b.resolved("c1", "answered"), b.tool_complete("c1"), b.question("c2")],
    "waits alone": [*ROUND, b.model_complete("c1"), b.approval("c1")],
    "failed with calls": [*CALLS, b.tool_start("c1"), b.tool_error("c1", status="cancelled"), b.tool_start("c2"),
                          b.tool_error("c2", status="cancelled"), b.failed()],
    "cancelled with calls": [*CALLS, b.tool_start("c1"), b.tool_error("c1", status="cancelled"), b.tool_start("c2"),
                             b.tool_error("c2", status="cancelled"), b.cancelled()],
    "failed for good": [*ROUND, b.delta("x"), b.model_complete(finish_reason="error"), b.delta(SORRY, 2)],
    "corrected": [*ROUND, b.delta("x"), b.model_complete(), b.output_invalid(), b.model_start(2), b.delta("{}", 2),
                  b.model_complete(iteration=2)],
    "completed": [*CALLS, b.tool_start("c1"), b.tool_start("c2"), b.tool_error("c1"), b.tool_complete("c2"),
                  b.model_start(2), b.model_complete(iteration=2)],
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECTED)
def test_a_directed_run_keeps_the_laws(name):
    fold = b.Fold()
    for event in DIRECTED[name]:
        before = fold.state.root.state
        fold.add(event)
        hits[before, event.type, fold.state.root.state] += 1
    if name == "completed":
        fold.add(b.final(fold.state))
        hits[State.THINKING, EventType.FINAL, State.COMPLETED] += 1
    if name not in ("notes",):
        assert check_laws(fold.log, ended=False) == []


def test_every_event_type_and_every_allowed_transition_was_hit():
    """Runs last in this file, over what all of the above did."""
    allowed = {
        (state, event, after) for state, row in TABLE.items() for event, targets in row.items() for after in targets
    }
    assert set(hits) <= allowed
    missed = sorted(f"{state} --{event}--> {after}" for state, event, after in allowed - set(hits))
    assert missed == []
    outputs = {EventType.STATE, EventType.GAP}  # what the machine writes, and what is in no log
    assert {event for _, event, _ in hits} == set(EventType) - outputs
