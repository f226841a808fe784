"""micro_batch in virtual time: when texts go out, what is never mixed, and that nothing is left."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex.subject import Subject  # noqa: TID251  a source that tests push by hand

from agentflow.events import DeltaEvent, EventType, WarningEvent
from agentflow.operators import MAX_BATCH_BYTES, MicroBatch, micro_batch, of_type
from agentflow.testing import run_virtual
from tests.builders import COMMON, delta, warning


class Clock:
    """Time moved by hand."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def monotonic(self):
        return self.now

    wall = monotonic

    def call_later(self, delay, callback):
        timer = [self.now + delay, callback]
        self.timers.append(timer)
        return _Timer(self, timer)

    def advance(self, seconds):
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= until + 1e-9]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = until


class _Timer:
    def __init__(self, clock, timer):
        self.clock, self.timer = clock, timer

    def cancel(self):
        if self.timer in self.clock.timers:
            self.clock.timers.remove(self.timer)


def batch(**options):
    clock, out = Clock(), []
    made = MicroBatch(
        lambda key, text, count: out.append((round(clock.now, 3), key, text, count)), clock=clock, **options
    )
    return made, clock, out


def test_the_first_text_goes_at_once_and_what_follows_is_joined_by_the_window():
    made, clock, out = batch()
    made.push("k", "a")
    assert out == [(0.0, "k", "a", 1)]
    for text in "bcd":
        clock.advance(0.05)
        made.push("k", text)
    assert len(out) == 1
    clock.advance(0.05)
    assert out[1:] == [(0.2, "k", "bcd", 3)]
    clock.advance(0.1)
    made.push("k", "e", 4)
    clock.advance(0.1)
    assert out[2:] == [(0.4, "k", "e", 4)]


def test_a_window_that_is_opened_joins_the_first_text_too():
    made, clock, out = batch()
    made.open()
    clock.advance(0.1)
    made.open()  # it is open already
    made.push("k", "a")
    made.push("k", "b")
    assert out == []
    clock.advance(0.1)
    assert out == [(0.2, "k", "ab", 2)]
    clock.advance(0.2)
    made.open()
    clock.advance(0.2)
    assert (made.idle, clock.timers, len(out)) == (True, [], 1)


def test_a_window_in_which_nothing_came_ends_in_idleness_without_a_timer():
    made, clock, out = batch()
    assert (made.idle, clock.timers) == (True, [])
    made.push("k", "a")
    assert (made.idle, len(clock.timers)) == (False, 1)
    clock.advance(0.2)
    assert (made.idle, clock.timers, len(out)) == (True, [], 1)  # and no empty batch
    made.push("k", "b")
    assert out[-1] == (0.2, "k", "b", 1)


def test_a_full_batch_does_not_wait_and_the_window_goes_on():
    made, clock, out = batch(max_bytes=10)
    for text in ("a", "12345", "6789", "0", "x"):
        made.push("k", text)
    assert [text for _, _, text, _ in out] == ["a", "1234567890"]
    clock.advance(0.2)
    assert out[-1] == (0.2, "k", "x", 1)


@pytest.mark.parametrize(("text", "size"), [("é", 2), ("字", 3), ("😀", 4), ("\ud800", 3)])
def test_bytes_are_those_of_utf_8_and_no_code_point_is_cut(text, size):
    made, _, out = batch(max_bytes=10 * size)
    made.push("k", "first")
    for _ in range(25):
        made.push("k", text)
    assert [emitted for _, _, emitted, _ in out[1:]] == [text * 10, text * 10]


def test_one_huge_text_passes_whole():
    made, _, out = batch()
    huge = "x" * (2 * 1024 * 1024)
    made.push("k", "a")
    made.push("k", huge)
    assert [len(text) for _, _, text, _ in out] == [1, len(huge)]
    assert len(huge) > MAX_BATCH_BYTES


def test_keys_are_never_mixed_and_the_window_survives_their_change():
    made, clock, out = batch()
    made.push("k", "a")
    clock.advance(0.1)
    made.push("k", "b")
    made.push("j", "c")
    assert out[1:] == [(0.1, "k", "b", 1)]
    made.push("j", "d")
    clock.advance(0.1)
    assert out[2:] == [(0.2, "j", "cd", 2)]
    made.push("k", "e")
    made.push("j", "f")
    made.push("k", "g")
    assert [(key, text) for _, key, text, _ in out[3:]] == [("k", "e"), ("j", "f")]


def test_closing_emits_and_ends_the_window_and_discarding_only_ends_it():
    made, clock, out = batch()
    for text in "ab":
        made.push("k", text)
    made.close()
    assert ([text for _, _, text, _ in out], made.idle, clock.timers) == (["a", "b"], True, [])
    made.push("k", "c")
    assert out[-1][2] == "c"  # idle again: at once
    made.push("k", "d")
    made.discard_timer()
    assert (out[-1][2], clock.timers) == ("c", [])


def test_a_consumer_that_raises_does_not_stop_the_batch():
    clock, out = Clock(), []

    def fragile(key, text, count):
        out.append(text)
        if text == "b":
            raise ValueError

    made = MicroBatch(fragile, clock=clock)
    made.push("k", "a")
    made.push("k", "b")
    with pytest.raises(ValueError):
        clock.advance(0.2)
    made.push("k", "c")
    clock.advance(0.2)
    assert out == ["a", "b", "c"]


actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["k", "j"]), st.text("aé字😀", min_size=1, max_size=4)),
        st.sampled_from([0.03, 0.2, 1.0]),
        st.just("flush"),
        st.just("close"),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(actions, st.integers(1, 12))
def test_what_comes_out_joins_to_what_went_in_per_key_in_order(done, max_bytes):
    made, clock, out = batch(max_bytes=max_bytes)
    went_in = []
    for action in done:
        if isinstance(action, tuple):
            went_in.append(action)
            made.push(*action)
        elif isinstance(action, float):
            clock.advance(action)
        else:
            getattr(made, action)()
    made.close()
    assert [(key, c) for _, key, text, _ in out for c in text] == [(key, c) for key, text in went_in for c in text]
    assert sum(count for *_, count in out) == len(went_in)
    assert all(text for _, _, text, _ in out)
    assert clock.timers == []


# -- the operator ----------------------------------------------------------------------------------------


def operated(**options):
    clock, source, out = Clock(), Subject(), []
    result = source.pipe(micro_batch(clock=clock, **options))
    subscription = result.subscribe(out.append, lambda error: out.append(str(error)), lambda: out.append("end"))
    return clock, source, out, subscription


def chain(name, text, **fields):
    return DeltaEvent(**COMMON | {"chain_id": name, "iteration": 1} | fields, text=text)


def told(out):
    return [(e.chain_id, e.text, e.count) if isinstance(e, DeltaEvent) else getattr(e, "type", e) for e in out]


def test_a_single_delta_passes_as_the_same_object():
    _, source, out, _ = operated()
    event = delta("a")
    source.on_next(event)
    assert out[0] is event


def test_another_event_sends_the_held_text_of_its_chain_before_itself():
    clock, source, out, _ = operated()
    for event in (chain("x", "a"), chain("x", "b"), chain("y", "c"), chain("x", "d"), chain("y", "e")):
        source.on_next(event)
    source.on_next(WarningEvent(**COMMON | {"chain_id": "x"}, code="w", message=""))
    assert told(out) == [("x", "a", 1), ("y", "c", 1), ("x", "bd", 2), EventType.WARNING]
    source.on_next(chain("x", "f"))
    assert told(out[4:]) == [("x", "f", 1)]  # its window was closed
    clock.advance(0.2)
    assert told(out[5:]) == [("y", "e", 1)]


@pytest.mark.parametrize("change", [{"iteration": 2}, {"attempt": 2}, {"channel": "reasoning"}])
def test_rounds_attempts_and_channels_are_never_mixed(change):
    clock, source, out, _ = operated()
    for event in (chain("x", "a"), chain("x", "b"), chain("x", "c", **change), chain("x", "d", **change)):
        source.on_next(event)
    clock.advance(0.2)
    assert told(out) == [("x", "a", 1), ("x", "b", 1), ("x", "cd", 2)]
    field, value = next(iter(change.items()))
    assert [getattr(event, field) == value for event in out] == [False, False, True]


@pytest.mark.parametrize("end", ["error", "completion"])
def test_the_end_sends_everything_first(end):
    clock, source, out, _ = operated()
    for event in (chain("x", "a"), chain("x", "b"), chain("y", "c"), chain("y", "d")):
        source.on_next(event)
    source.on_error(ValueError("broken")) if end == "error" else source.on_completed()
    assert told(out)[2:] == [("x", "b", 1), ("y", "d", 1), "broken" if end == "error" else "end"]
    assert clock.timers == []


def test_disposing_drops_what_is_held_and_its_timers():
    clock, source, out, subscription = operated()
    for event in (chain("x", "a"), chain("x", "b")):
        source.on_next(event)
    subscription.dispose()
    clock.advance(1)
    assert (told(out), clock.timers, len(source.observers)) == ([("x", "a", 1)], [], 0)


def test_ten_thousand_chains_leave_nothing():
    clock, source, out, _ = operated()
    for number in range(10_000):
        source.on_next(chain(f"c{number}", "a"))
        source.on_next(chain(f"c{number}", "b"))
        if number % 2:
            source.on_next(WarningEvent(**COMMON | {"chain_id": f"c{number}"}, code="w", message=""))
        if number % 100 == 0:
            clock.advance(0.4)
    clock.advance(1)
    assert sum(event.count for event in out if isinstance(event, DeltaEvent)) == 20_000
    assert clock.timers == []
    source.on_next(chain("last", "a"))
    assert len(clock.timers) == 1


def test_many_open_chains_cost_each_other_nothing():
    _, source, out, _ = operated()
    looks = 0

    class Counted(str):
        """A chain id that counts how often it is looked at."""

        __slots__ = ()

        def __hash__(self):
            nonlocal looks
            looks += 1
            return super().__hash__()

    for number in range(2000):
        source.on_next(chain(Counted(f"c{number}"), "a"))
    assert len(out) == 2000
    assert looks < 2000 * 10


def test_without_a_clock_it_is_the_running_loops():
    async def main():
        source, out = Subject(), []
        source.pipe(micro_batch()).subscribe(out.append)
        for text in "abc":
            source.on_next(delta(text))
        await asyncio.sleep(0.3)
        return [event.text for event in out]

    assert run_virtual(main()) == ["a", "bc"]


def test_of_type_gives_one_class_and_passes_the_end():
    source, out = Subject(), []
    source.pipe(of_type(WarningEvent)).subscribe(out.append, lambda error: out.append(str(error)))
    for event in (delta("a"), warning(), delta("b")):
        source.on_next(event)
    source.on_error(ValueError("broken"))
    assert [type(event) for event in out[:1]] + out[1:] == [WarningEvent, "broken"]
