"""Chains that call chains, humans and amendments: whatever happens, in whatever order, the laws and an oracle hold."""

from collections import Counter, deque

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.chain.writer import closing_events
from agentflow.errors import InvalidTransition
from agentflow.events import (
    ApprovalEvent,
    CancelledEvent,
    DeltaEvent,
    Event,
    FinalEvent,
    InputEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    QuestionEvent,
    ResolvedEvent,
    RollbackEvent,
    State,
    StateEvent,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
    stamp,
)
from agentflow.messages import ToolCall, unpaired
from agentflow.state import (
    TERMINAL_STATES,
    Ask,
    CallModel,
    CompleteTool,
    Finish,
    Limits,
    Notice,
    RefuseTool,
    RunState,
    RunTool,
    StopTool,
    Warn,
    kept_messages,
    reduce,
    state_changes,
    tool_records,
)
from agentflow.testing import assert_laws, check_laws
from tests.builders import COMMON, USAGE

LEAF = Limits(max_iterations=3, sequential=frozenset({"alone"}))
CHILD = Limits(max_iterations=3, sequential=frozenset({"alone"}), children={"child": LEAF}, questions=False)
ROOT = Limits(
    max_iterations=4,
    max_parallel_tools=3,
    max_tool_calls=14,
    sequential=frozenset({"alone"}),
    children={"child": CHILD},
)
TEXTS = ("done", "it failed, sorry", '{"question": "Which?", "options": []}')
met = Counter()  # what the examples have come to, so that they are known to show something


class Play:
    """Performs commands as a chain does, without tasks and time: what is under way ends when it is told to."""

    def __init__(self):
        self.state = RunState(run_id="r", limits=ROOT)
        self.log = []
        self.headers = {"r": COMMON}
        self.models = {}  # chain: iteration and attempt of its open call
        self.running = {}  # call: its chain
        self.stopped = set()
        self.number = 0
        self.post(InputEvent(text="hello", iteration=0, **COMMON))

    # -- the writer --------------------------------------------------------------------------------------

    def post(self, item):
        work = deque([item])
        while work:
            item = work.popleft()
            if isinstance(item, Event):
                work.extend(self.take(item))
            else:
                work.extendleft(reversed(self.prepare(item)))

    def take(self, event):
        before = self.state
        self.state, commands = reduce(before, event)
        ends, moves = state_changes(before, self.state)
        for one in (*self.moves(event, ends), event, *self.moves(event, moves)):
            stamp(one, len(self.log) + 1, f"2026-01-01T00:00:00.{len(self.log):06}Z")
            self.log.append(one)
        return commands

    def moves(self, cause, changes):
        for chain_id, previous, current in changes:
            iteration = self.state.chain(chain_id).iteration
            yield StateEvent(previous=previous, current=current, iteration=iteration, **self.headers[chain_id])

    def make(self, kind, chain_id, iteration=None, **fields):
        number = self.state.chain(chain_id).iteration if iteration is None else iteration
        return kind(iteration=number, **self.headers[chain_id], **fields)

    # -- commands ----------------------------------------------------------------------------------------

    def prepare(self, command):
        return getattr(self, f"on_{type(command).__name__}")(command, command.chain_id)

    def on_CallModel(self, command: CallModel, chain_id):
        self.models[chain_id] = (command.iteration, command.attempt)
        fields = {"provider": "p", "model": "m", "messages": 1, "input_tokens_estimate": 1}
        return [self.make(ModelStartEvent, chain_id, command.iteration, attempt=command.attempt, **fields)]

    def on_RunTool(self, command: RunTool, chain_id):
        call = self.state.chain(chain_id).find(command.call_id)
        if call is None or call.status not in ("ready", "retrying"):
            return []
        name, call_id = call.call.name, call.call.call_id
        arguments = call.amended or command.arguments or {}
        if name == "human" and not command.approved:
            fields = {"call_id": call_id, "tool": name, "arguments": arguments, "arguments_hash": "0" * 64}
            return [self.make(ApprovalEvent, chain_id, **fields)]
        if name == "child" and self.state.depth(chain_id) >= 2:
            return self.refused(call, chain_id, "limit")
        start = self.start(call, chain_id, arguments)
        if name == "ask":
            return [start, self.make(QuestionEvent, chain_id, question_id=call_id, text="Why?")]
        if name == "child":
            return [*self.child(start, chain_id)]
        self.running[call_id] = chain_id
        self.stopped.discard(call_id)
        return [start]

    def start(self, call, chain_id, arguments):
        fields = {"call_id": call.call.call_id, "tool": call.call.name, "attempt": call.attempt + 1}
        return self.make(ToolStartEvent, chain_id, arguments=arguments, raw_arguments="{}", **fields)

    def child(self, start, chain_id):
        self.number += 1
        child_id, parent = f"k{self.number}", self.headers[chain_id]
        path = (*parent["path"], "child")
        self.headers[child_id] = parent | {"chain_id": child_id, "parent_chain_id": chain_id, "path": path}
        yield msgspec.structs.replace(start, child_chain_id=child_id)
        yield self.make(InputEvent, child_id, 0, text="go on")

    def refused(self, call, chain_id, status):
        fields = {"call_id": call.call.call_id, "tool": call.call.name, "attempt": call.attempt + 1, "status": status}
        error = {"kind": status, "message": ""}
        return [
            self.start(call, chain_id, call.arguments or {}),
            self.make(ToolErrorEvent, chain_id, error=error, result=status, **fields),
        ]

    def on_RefuseTool(self, command: RefuseTool, chain_id):
        return self.refused(self.state.chain(chain_id).find(command.call_id), chain_id, command.status)

    def on_CompleteTool(self, command: CompleteTool, chain_id):
        return [self.complete(command.call_id, chain_id, command.result)]

    def on_StopTool(self, command: StopTool, chain_id):
        call = self.state.chain(chain_id).find(command.call_id)
        if call.child is None:
            self.stopped.add(command.call_id)
            return []
        met["an agent is amended"] += 1
        below = self.state.below(call.child)
        events = [
            event
            for one in below
            for open_call in self.state.chain(one).open_calls()
            for event in closing_events(open_call, "amended", "x", self.headers[one], self.state.chain(one))
        ]
        for one in below:
            self.models.pop(one, None)
        self.running = {call_id: one for call_id, one in self.running.items() if one not in below}
        chain = self.state.chain(chain_id)
        *_, amended = closing_events(call, "amended", "x", self.headers[chain_id], chain)
        return [*events, msgspec.structs.replace(amended, will_retry=True)]

    def on_Ask(self, command: Ask, chain_id):
        self.number += 1
        return [self.make(QuestionEvent, chain_id, question_id=f"q{self.number}", text=command.text)]

    def on_Warn(self, command: Warn, chain_id):
        met[command.code] += 1
        return [self.make(WarningEvent, chain_id, code=command.code, message=command.message)]

    def on_Notice(self, command: Notice, chain_id):
        text = self.make(DeltaEvent, chain_id, self.state.chain(chain_id).iteration + 1, text=command.text)
        return [text, Finish(chain_id, command.finish_reason)]

    def on_Finish(self, command: Finish, chain_id):
        chain = self.state.chain(chain_id)
        if chain.parent is not None:
            return [self.complete(chain.call_id, chain.parent, chain.round.text)]
        met[f"final {command.finish_reason}"] += 1
        fields = {"usage": self.state.usage, "iterations": chain.iteration, "tools": tool_records(chain)}
        reason = command.finish_reason
        return [self.make(FinalEvent, "r", text=chain.round.text, finish_reason=reason, duration_ms=1.0, **fields)]

    def complete(self, call_id, chain_id, result):
        call = self.state.chain(chain_id).find(call_id)
        fields = {"call_id": call_id, "tool": call.call.name, "attempt": call.attempt}
        return self.make(ToolCompleteEvent, chain_id, result=result, duration_ms=1.0, **fields)

    # -- what may happen ---------------------------------------------------------------------------------

    def choices(self):
        """What may happen next, as (name, what it is about)."""
        yield from (("reply", chain_id) for chain_id in self.models)
        yield from (("roll back", chain_id) for chain_id, (_, attempt) in self.models.items() if attempt < 3)
        yield from (("end", call_id) for call_id in self.running)
        for chain_id in self.state.open_chains():
            chain = self.state.chain(chain_id)
            if chain.question is not None:
                yield "answer", (chain_id, chain.question)
            for call in chain.open_calls():
                if call.status == "waiting" and call.child is None:
                    yield "decide", (chain_id, call)
                if call.status == "retrying":
                    yield "again", (chain_id, call)
                if call.status in ("running", "retrying") or call.child is not None:
                    yield "amend", (chain_id, call)

    def step(self, draw):
        name, about = draw(st.sampled_from(sorted(self.choices(), key=repr)))
        getattr(self, name.replace(" ", "_"))(draw, about)

    def reply(self, draw, chain_id):
        iteration, attempt = self.models.pop(chain_id)
        names = draw(st.lists(st.sampled_from(["leaf", "alone", "human", "ask", "child"]), max_size=4))
        text = draw(st.sampled_from(TEXTS))
        self.post(self.make(DeltaEvent, chain_id, iteration, attempt=attempt, text=text))
        ids = [f"c{self.number + position}" for position in range(1, len(names) + 1)]
        self.number += len(ids)
        calls = tuple(ToolCall(call_id=i, name=n, raw_arguments="{}") for i, n in zip(ids, names, strict=True))
        self.post(self.make(ModelCompleteEvent, chain_id, iteration, tool_calls=calls, usage=USAGE, duration_ms=1.0))

    def roll_back(self, draw, chain_id):
        iteration, attempt = self.models.pop(chain_id)
        self.post(self.make(RollbackEvent, chain_id, iteration, attempt=attempt, reason="retry"))

    def end(self, draw, call_id):
        chain_id = self.running.pop(call_id)
        call = self.state.chain(chain_id).find(call_id)
        how = draw(st.sampled_from(["complete", "error", "retry", "amended"]))
        if how == "complete" or (how == "amended" and call_id not in self.stopped):
            self.post(self.complete(call_id, chain_id, "ok"))
            return
        status = "amended" if how == "amended" else "error"
        fields = {"call_id": call_id, "tool": call.call.name, "attempt": call.attempt, "status": status}
        error = {"kind": status, "message": ""}
        self.post(self.make(ToolErrorEvent, chain_id, error=error, result="no", will_retry=how != "error", **fields))

    def again(self, draw, about):
        chain_id, call = about
        self.post(RunTool(chain_id, call.call.call_id, approved=True, arguments=call.arguments))

    def answer(self, draw, about):
        chain_id, question = about
        self.resolve(chain_id, question, "answered", text="so")

    def decide(self, draw, about):
        chain_id, call = about
        if call.attempt:
            self.resolve(chain_id, call.call.call_id, "answered", text="so")
            return
        decision = draw(st.sampled_from(["approved", "rejected", "amended", "expired"]))
        self.resolve(chain_id, call.call.call_id, decision, arguments={"n": 1} if decision == "amended" else None)

    def amend(self, draw, about):
        chain_id, call = about
        if call.call.name != "ask":
            self.number += 1
            self.resolve(chain_id, call.call.call_id, "amended", arguments={"n": self.number})

    def resolve(self, chain_id, target, decision, **fields):
        self.post(self.make(ResolvedEvent, chain_id, target=target, decision=decision, **fields))

    def cancel(self):
        for chain_id in self.state.open_chains():
            chain = self.state.chain(chain_id)
            for call in chain.open_calls():
                for event in closing_events(call, "cancelled", "x", self.headers[chain_id], chain):
                    assert self.take(event) == ()
        assert self.take(self.make(CancelledEvent, "r", reason="user", usage=USAGE, duration_ms=1.0)) == ()

    # -- what must be true -------------------------------------------------------------------------------

    def check(self):
        chains = self.state.chains
        calls = [call for chain in chains.values() for call in chain.open_calls()]
        works = self.models or self.running or any(call.status == "retrying" for call in calls)
        waits = any(chain.question for chain in chains.values()) or any(call.status == "waiting" for call in calls)
        if not self.state.ended:
            assert (self.state.root.state is State.SUSPENDED) == (not works and waits)
            assert works or waits  # never neither: it would stand still for ever
        for chain_id, chain in chains.items():
            met[f"depth {self.state.depth(chain_id)}"] += 1
            self.check_chain(chain)
        assert check_laws(self.log, ended=self.state.ended) == []

    def check_chain(self, chain):
        begun = [call for call in chain.open_calls() if call.status != "pending"]
        if any(call.call.name == "alone" for call in begun):
            assert len(begun) == 1
        if chain.state in TERMINAL_STATES:
            assert chain.open_calls() == ()
        met["suspended below a root that works"] += (
            chain.parent is not None and chain.state is State.SUSPENDED and self.state.root.state is not State.SUSPENDED
        )


def nested():
    """A play whose root has called an agent, which has called a tool."""
    play = Play()
    for chain_id, name in (("r", "child"), ("k2", "leaf")):
        play.models.pop(chain_id)
        call = ToolCall(call_id=f"c{len(play.running)}{name}", name=name, raw_arguments="{}")
        play.number += 1
        play.post(play.make(ModelCompleteEvent, chain_id, 1, tool_calls=(call,), usage=USAGE, duration_ms=1.0))
    return play


def test_an_agents_call_is_not_closed_while_calls_of_its_own_are_open():
    play = nested()
    before = play.state
    for closing in (
        play.complete("c0child", "r", "done"),
        closing_events(before.root.open_calls()[0], "cancelled", "x", COMMON, before.root)[0],
    ):
        with pytest.raises(InvalidTransition, match="while calls of its agent are open"):
            play.take(closing)
    assert play.state is before


def test_no_chain_begins_twice_and_only_the_root_ends_a_run():
    play = nested()
    play.post(play.complete("c0leaf", "k2", "ok"))
    start = next(event for event in play.log if isinstance(event, ToolStartEvent))
    chain = msgspec.structs.replace(start, call_id="c9", attempt=1)
    with pytest.raises(InvalidTransition):
        play.take(chain)
    with pytest.raises(InvalidTransition, match="only the root chain ends a run"):
        play.take(play.make(CancelledEvent, "k2", reason="user", usage=USAGE, duration_ms=1.0))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_order_of_what_may_happen_keeps_the_laws(data):
    play = Play()
    for _ in range(data.draw(st.integers(0, 60))):
        play.check()
        if play.state.ended:
            break
        play.step(data.draw)
    if not play.state.ended:
        play.cancel()
    play.check()
    assert_laws(play.log)
    assert unpaired(kept_messages(play.state.root)) is None
    state = RunState(run_id="r", limits=ROOT)
    for event in play.log:
        state, _ = reduce(state, event)
    assert state == play.state


def test_the_examples_above_have_shown_what_they_are_for():
    """Runs last in this file."""
    for what in (
        "an agent is amended",
        "suspended below a root that works",
        "decision_too_late",
        "final stop",
        "depth 2",
    ):
        assert met[what] > 0, (what, met)
