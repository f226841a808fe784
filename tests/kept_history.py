"""What sessions keep against what the logs of their runs say: looked at whenever a test closes an agent."""

import msgspec

from agentflow.event_log import PAGE
from agentflow.state import Limits, RunState, kept_messages, reduce


async def assert_kept(store, limits=None):
    """The turn that a session keeps of a run is what its log says: of every run that has ended, if it said anything.

    `limits` are those of its agent. Pictures stand in no log, so of them only the words beside them are compared.
    """
    async for record in _ended_runs(store):
        chain, version = await _folded(store, record.run_id, limits or Limits())
        messages, session = kept_messages(chain), await store.find_session(record.session)
        if not messages or session is None or session.version <= version:  # it never began, or was deleted since
            continue
        kept = [turn async for turn in _turns(store, record.session) if turn.run_id == record.run_id]
        assert [tuple(map(_words, turn.messages)) for turn in kept] == [messages], f"run {record.run_id}"


async def _folded(store, run_id, limits):
    """What the log of a run leads to, and how many turns its session had before."""
    state, seq, version = RunState(run_id=run_id, limits=limits), 0, 0
    while events := await store.read(run_id, seq, PAGE):
        version = version if seq else getattr(events[0], "history_version", 0)
        for event in events:
            state, _ = reduce(state, event)
        seq = events[-1].seq
    return state.root, version


async def _ended_runs(store):
    before = None
    while records := await store.list_runs(before=before):
        for record in records:
            if record.ended and record.session is not None:
                yield record
        before = records[-1].number


async def _turns(store, key):
    after = 0
    while turns := await store.read_turns(key, after, 100):
        for turn in turns:
            yield turn
        after += len(turns)


def _words(message):
    return message if isinstance(message.content, str) else msgspec.structs.replace(message, content=message.text)
