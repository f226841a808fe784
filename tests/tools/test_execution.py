"""One call of a tool, whatever the tool does: what it gives, raises, streams, ignores or never ends."""

import asyncio
import contextvars
import dataclasses
import datetime
import decimal
import enum
import gc
import logging
import sqlite3
import threading
import typing

import pytest
import reactivex
from pydantic import BaseModel
from reactivex import operators

from agentflow.errors import ToolError
from agentflow.events import MAX_RESULT_BYTES
from agentflow.tools.execution import MAX_STREAM_BYTES, Pools, ThreadPool, ToolContext, execute
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.schema import ToolContext as SchemaToolContext

CONTEXT = ToolContext(run_id="r", session_id="s", user_id="u", call_id="c", tool="t", metadata={"k": "v"})
MAY_STILL = "It could not be stopped and may still have its effect."
variable = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def pools():
    made = Pools({"tiny": (1, 1)})
    yield made
    made.close()


class Runner:
    def __init__(self, pools):
        self.pools = pools
        self.deltas = []

    async def __call__(self, function, arguments=None, **options):
        (made,) = ToolRegistry([function])
        made = dataclasses.replace(made, **options)
        return await execute(made, arguments or {}, CONTEXT, on_delta=self.deltas.append, pools=self.pools)


@pytest.fixture
def run(pools):
    return Runner(pools)


class Gate:
    """A sync body that says when it has begun and ends when it is told to."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._go = threading.Event()

    def body(self) -> str:
        self._loop.call_soon_threadsafe(self._begun.set)
        self._go.wait()
        return "late"

    async def begun(self):
        await self._begun.wait()

    def open(self):
        self._go.set()


async def until(condition):
    while not condition():  # noqa: ASYNC110  what threads do sets no asyncio.Event
        await asyncio.sleep(0)


def start(awaitable):
    return asyncio.get_running_loop().create_task(awaitable)


# What is given


async def test_a_function_a_coroutine_and_what_they_return_to_be_awaited_give_their_value(run):
    def sync(a: int):
        return {"a": a}

    async def coroutine(a: int):
        await asyncio.sleep(0)
        return {"a": a}

    def deferred(a: int):
        return coroutine(a)

    async def twice(a: int):
        return deferred(a)

    for function in (sync, coroutine, deferred, twice):
        outcome = await run(function, {"a": 1})
        assert (outcome.ok, outcome.result) == (True, '[success]\n{"a":1}')
        assert (outcome.status, outcome.error, outcome.truncated) == (None, None, False)
    assert run.deltas == []


async def test_a_tool_object_gets_the_arguments_as_they_are(run):
    class Lookup:
        name = "lookup"
        description = ""
        parameters: typing.ClassVar = {"type": "object"}

        async def execute(self, arguments):
            return arguments

    assert (await run(Lookup(), {"q": [1]})).result == '[success]\n{"q":[1]}'


async def test_the_body_gets_the_declared_types_and_its_context(run):
    seen = []

    def body(day: datetime.date, context: ToolContext):
        seen.append((day, context))

    outcome = await run(body, {"day": "2025-01-31"})

    assert outcome.result == "[success]\nnull"
    assert seen == [(datetime.date(2025, 1, 31), CONTEXT)]
    assert ToolContext is SchemaToolContext


async def test_a_body_that_changes_its_arguments_changes_nothing_else(run):
    arguments = {"a": {"b": [1]}}

    def body(a: dict):
        a["b"].append(2)
        return a

    assert (await run(body, arguments)).result == '[success]\n{"b":[1,2]}'
    assert arguments == {"a": {"b": [1]}}


async def test_context_variables_reach_every_kind_of_body(run):
    variable.set("mine")

    def sync():
        return variable.get()

    def generator():
        yield variable.get()

    async def coroutine():
        return variable.get()

    async def async_generator():
        yield variable.get()

    for function in (sync, generator, coroutine, async_generator):
        assert (await run(function)).result == "[success]\nmine"


async def test_a_transaction_that_is_bound_to_its_thread_works(run, tmp_path):
    def transfer(path: str):
        with sqlite3.connect(path) as database:
            database.execute("create table account (id, cents)")
            database.execute("insert into account values (1, 100)")
            rows = database.execute("select * from account").fetchall()
        database.close()
        return rows

    def rows(path: str):
        database = sqlite3.connect(path)
        yield from database.execute("select * from account")
        database.close()

    path = {"path": str(tmp_path / "a.db")}
    assert (await run(transfer, path)).result == "[success]\n[[1,100]]"
    assert (await run(rows, path)).result == "[success]\n[1,100]"


async def test_a_sync_body_does_not_hold_up_the_loop(run):
    gate = Gate()
    task = start(run(gate.body))
    await gate.begun()  # the loop runs on while the body blocks
    gate.open()

    assert (await task).result == "[success]\nlate"


# What is streamed


async def test_every_kind_of_stream_gives_its_items_in_order_and_their_joined_text(run):
    def generator():
        yield from ("a", "b", "c")

    async def async_generator():
        for item in ("a", "b", "c"):
            yield item

    def returns_generator():
        return generator()

    async def returns_async_generator():
        return async_generator()

    async def returns_generator_from_the_loop():
        return generator()

    def observable():
        return reactivex.of("a", "b", "c")

    for function in (
        generator,
        async_generator,
        returns_generator,
        returns_async_generator,
        returns_generator_from_the_loop,
        observable,
    ):
        run.deltas.clear()
        outcome = await run(function)
        assert outcome.result == "[success]\nabc"
        assert run.deltas == ["a", "b", "c"]


async def test_a_stream_of_other_things_gives_its_last_item(run):
    async def progress():
        yield {"done": 1, "total": 2}
        yield "half"
        yield {"done": 2, "total": 2, "when": datetime.date(2025, 1, 1)}

    outcome = await run(progress)

    assert outcome.result == '[success]\n{"done":2,"total":2,"when":"2025-01-01"}'
    assert run.deltas[2] == {"done": 2, "total": 2, "when": "2025-01-01"}


async def test_an_empty_stream_gives_empty_text(run):
    def nothing():
        yield from ()

    assert (await run(nothing)).result == "[success]\n"


async def test_a_stream_that_raises_has_given_what_came_before(run):
    def breaks():
        yield "a"
        raise ValueError("broken")

    outcome = await run(breaks)

    assert run.deltas == ["a"]
    assert outcome.result == "[error: failed]\nValueError: broken"


@pytest.mark.parametrize("kind", ["thread", "loop", "observable"])
async def test_output_over_its_bound_fails_the_call(run, kind):
    def thread():
        while True:
            yield "x" * 100_000

    async def loop():
        while True:
            yield "x" * 100_000

    def observable():
        return reactivex.from_iterable("x" * 100_000 for _ in range(20))

    outcome = await run({"thread": thread, "loop": loop, "observable": observable}[kind])

    assert outcome.result == f"[error: failed]\nthe tool's output is larger than {MAX_STREAM_BYTES} bytes"
    assert len(run.deltas) == 10


async def test_a_generator_in_a_thread_stays_a_bounded_number_of_items_ahead(run):
    made = []
    gate = threading.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def eager():
        for number in range(1000):
            made.append(number)
            if number == 10:
                loop.call_soon_threadsafe(begun.set)
                gate.wait()
            yield {"n": number}

    ahead = []
    (made_tool,) = ToolRegistry([eager])
    task = start(
        execute(made_tool, {}, CONTEXT, on_delta=lambda item: ahead.append(len(made) - item["n"]), pools=run.pools)
    )
    await begun.wait()
    gate.set()
    await task

    assert len(ahead) == 1000
    assert max(ahead) <= 66  # 64 on their way, one made, one being made


async def test_an_async_generator_that_never_waits_leaves_room_for_others(run):
    order = []

    async def greedy():
        for number in range(1000):
            yield number
        order.append("greedy")

    async def other():
        await asyncio.sleep(0)
        order.append("other")

    await asyncio.gather(run(greedy), other())

    assert order == ["other", "greedy"]


async def test_a_stream_that_is_left_is_closed(run):
    closed = []

    def generator():
        try:
            while True:
                yield "a"
        finally:
            closed.append("generator")

    async def async_generator():
        try:
            while True:
                yield "a"
                await asyncio.sleep(0)
        finally:
            closed.append("async_generator")

    for function in (generator, async_generator):
        run.deltas.clear()
        task = start(run(function))
        await until(lambda: len(run.deltas) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        count = len(run.deltas)
        await until(lambda: closed[-1:] == [function.__name__])  # noqa: B023  awaited within the round
        assert len(run.deltas) == count


async def test_an_outcome_says_whether_a_delta_went_out(run):
    def silent():
        return "a"

    def breaks_at_once():
        yield from ()
        raise ValueError("broken")

    def gives():
        yield "a"

    async def gives_and_breaks():
        yield "a"
        raise ValueError("broken")

    functions = (silent, breaks_at_once, gives, gives_and_breaks)
    assert [(await run(function)).emitted for function in functions] == [False, False, True, True]


# What is raised


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


FAILURES = [
    (ValueError("bad id"), "ValueError: bad id"),
    (KeyError("id"), "KeyError: 'id'"),
    (Exception(), "Exception"),
    (BaseException("base"), "BaseException: base"),
    (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b")])]), "ValueError: a; KeyError: 'b'"),
    (BaseExceptionGroup("g", [SystemExit(1)]), "SystemExit: 1"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (StopAsyncIteration("x"), "StopAsyncIteration: x"),
    (asyncio.CancelledError(), "CancelledError"),
    (RecursionError("deep"), "RecursionError: deep"),
    (Silent(), "Silent"),
    (ToolError("in its own words"), "in its own words"),
]


@pytest.mark.parametrize("place", ["sync", "coroutine"])
@pytest.mark.parametrize(("error", "says"), FAILURES, ids=lambda value: type(value).__name__)
async def test_whatever_a_body_raises_is_an_outcome(run, place, error, says):
    def sync():
        raise error

    async def coroutine():
        raise error

    outcome = await run(sync if place == "sync" else coroutine)

    kind = "tool" if type(error) is ToolError else "failed"
    assert (outcome.ok, outcome.status) == (False, "error")
    assert (outcome.error.kind, outcome.error.message) == (kind, says)
    assert outcome.result == f"[error: {kind}]\n{says}"


async def test_stop_iteration_in_a_thread_ends_the_call_at_once(run):
    def empty():
        return next(iter([]))

    assert (await run(empty)).result == "[error: failed]\nStopIteration"


async def test_stop_iteration_elsewhere_is_contained_too(run):
    def generator():
        yield next(iter([]))

    async def coroutine():
        return next(iter([]))

    async def async_generator():
        yield next(iter([]))

    for function in (generator, coroutine, async_generator):
        assert "StopIteration" in (await run(function)).result


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
async def test_streams_that_raise_base_exceptions_are_contained(run, error):
    def generator():
        yield "a"
        raise error

    async def async_generator():
        yield "a"
        raise error

    for function in (generator, async_generator):
        assert (await run(function)).status == "error"


async def test_a_body_that_cancels_its_own_task_has_failed(run):
    async def suicidal():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    assert (await run(suicidal)).result == "[error: failed]\nCancelledError"


@pytest.mark.parametrize("place", ["sync", "coroutine"])
async def test_running_out_of_memory_is_not_the_tools_failure(run, place):
    def sync():
        raise MemoryError

    async def coroutine():
        raise MemoryError

    with pytest.raises(MemoryError):
        await run(sync if place == "sync" else coroutine)


async def test_infinite_recursion_is_contained(run):
    def deeper(n: int = 0):
        return deeper(n + 1)

    assert "RecursionError" in (await run(deeper)).result


async def test_an_observable_that_errors_has_failed(run):
    def broken():
        return reactivex.throw(ValueError("from rx"))

    assert (await run(broken)).result == "[error: failed]\nValueError: from rx"


async def test_an_outcome_says_why_a_failure_may_pass_and_when_to_come_back(run):
    class LimitedError(Exception):
        status = 429
        retry_after = 7

    def limited():
        raise LimitedError("slow down")

    async def down():
        return {"status": 503}

    def broken():
        raise ValueError("broken")

    outcomes = [await run(function) for function in (limited, down, broken)]

    assert [(outcome.status, outcome.cause, outcome.retry_after) for outcome in outcomes] == [
        ("rate_limited", "rate_limit", 7.0),
        ("degraded", "upstream", None),
        ("error", "", None),
    ]
    assert outcomes[1].result.startswith("[degraded]\nThe service behind down answered with an error (status 503)")
    assert not any(outcome.emitted or outcome.abandoned for outcome in outcomes)


async def test_a_value_that_fits_the_schema_but_not_the_type_is_an_arguments_error(run):
    def body(pair: decimal.Decimal):
        raise AssertionError("never runs")

    outcome = await run(body, {"pair": "not a number"})

    assert (outcome.status, outcome.error.kind) == ("invalid_arguments", "arguments")
    assert outcome.result.startswith("[error: arguments]\nThe arguments were refused")


async def test_the_model_gets_one_short_clean_line_and_never_a_traceback(run, caplog):
    caplog.set_level(logging.INFO)

    def body():
        raise ValueError("line one\nline two\x1b[31m \ud800\x00" + "x" * 10_000)

    message = (await run(body)).error.message

    assert message.startswith("ValueError: line one line two [31m")
    assert len(message) == 500
    assert "\n" not in message
    assert "Traceback" not in message
    assert caplog.records == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("refused: sk-proj-abcdefghijkl", "abcdefghijkl"),
        ("header Authorization: Bearer abcdefghijkl.mno", "abcdefghijkl"),
        ("cannot reach redis://user:hunter22@host/0", "hunter22"),
        ("GET /?api_key=abcdef123&x=1", "abcdef123"),
        ("{'password': 'hunter22'}", "hunter22"),
        ("{'password': 'hun ter'} token=abcdef123", "abcdef123"),
        ("x-auth-token: abcdef123", "abcdef123"),
        ("Authorization: Basic dXNlcjpodW50ZXI=", "dXNlcjpodW50ZXI"),
        ("'authorization': 'Basic dXNlcjpodW50ZXI='", "dXNlcjpodW50ZXI"),
        ("Authorization: ApiKey abcdef123", "abcdef123"),
        ("Authorization: abcdef123", "abcdef123"),
        ("bad eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", "SflKxwRJSM"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
        ("aws_session_token = 'FwoGZXIvYXdz/x'", "FwoGZXIvYXdz"),
        ("passwd=hunter22", "hunter22"),
        ("POST https://x/v1?key=abcdef123", "abcdef123"),
        ("hf_abcdefghijkl", "abcdefghijkl"),
        ("gsk_abcdefghijkl", "abcdefghijkl"),
        ("AIzaSyabcdefghijkl", "abcdefghijkl"),
        ("xai-abcdefghijkl", "abcdefghijkl"),
        ("postgres://user:p@ss:word1@host:5432/db", "word1"),
        ("https://:hunter22@host", "hunter22"),
    ],
)
async def test_what_looks_like_a_key_is_masked(run, text, secret):
    def body():
        raise ValueError(text)

    outcome = await run(body)

    assert secret not in outcome.result
    assert "***" in outcome.result


async def test_words_that_name_no_key_are_told(run):
    def body():
        raise ValueError("unexpected token: 'x' at basic level, no key=5 in the table, code: 4040")

    assert "***" not in (await run(body)).result


# How a result is written


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    BIG = "big"


class Order(BaseModel):
    id: int
    when: datetime.datetime


@dataclasses.dataclass
class Line:
    sku: str


circular: dict = {}
circular["self"] = circular
circular["again"] = circular

deep: list = []
for _ in range(5000):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (2**70, str(2**70)),
        (1.5, "1.5"),
        (float("nan"), "null"),
        (float("inf"), "null"),
        ([1, "a"], '[1,"a"]'),
        ((1, 2), "[1,2]"),
        ({3}, "[3]"),
        ({1: "a"}, '{"1":"a"}'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (datetime.datetime(2025, 1, 31, 12), '"2025-01-31T12:00:00"'),
        (Colour.RED, '"red"'),
        (Size.BIG, "big"),
        (b"ab", '"YWI="'),
        (Order(id=1, when=datetime.datetime(2025, 1, 31)), '{"id":1,"when":"2025-01-31T00:00:00"}'),
        ([Line("a")], '[{"sku":"a"}]'),
        (object(), '{"$unencodable":"object"}'),
        ("lone \ud800 half", "lone \ufffd half"),
        ("pair \ud83d\ude00", "pair \U0001f600"),
        (circular, '{"self":{"$unencodable":"dict that contains itself"},'
                   '"again":{"$unencodable":"dict that contains itself"}}'),
    ],
)  # fmt: skip
async def test_every_value_has_a_stable_text(run, value, text):
    def sync():
        return value

    async def coroutine():
        return value

    assert (await run(sync)).result == f"[success]\n{text}"
    assert (await run(coroutine)).result == f"[success]\n{text}"


async def test_a_very_deep_value_is_marked_where_it_is_cut(run):
    def body():
        return deep

    assert "nested deeper than 64 levels" in (await run(body)).result


async def test_a_value_that_refuses_to_be_written_is_marked(run):
    class Stubborn:
        def model_dump(self, **options):
            raise SystemError("no")

    def body():
        return {"a": Stubborn(), "b": 1}

    assert (await run(body)).result == '[success]\n{"a":{"$unencodable":"%s"},"b":1}' % Stubborn.__qualname__  # noqa: UP031


@pytest.mark.parametrize("place", ["sync", "coroutine"])
@pytest.mark.parametrize("size", [MAX_RESULT_BYTES - 10, MAX_RESULT_BYTES - 9, 70_000, 5_000_000])
@pytest.mark.parametrize("character", ["a", "é", "\U0001f600"])
async def test_a_result_is_at_most_64_kib_with_its_status_line_and_says_what_was_cut(run, place, size, character):
    text = character * (size // len(character.encode()))

    def sync():
        return text

    async def coroutine():
        return text

    outcome = await run(sync if place == "sync" else coroutine)

    encoded = outcome.result.encode()
    assert len(encoded) <= MAX_RESULT_BYTES
    assert outcome.truncated == (len(text.encode()) > MAX_RESULT_BYTES - 10)
    assert "\ufffd" not in outcome.result
    if outcome.truncated:
        assert f"[cut: the whole result has {len(text.encode())} bytes, sha256 " in outcome.result
        assert len(encoded) > MAX_RESULT_BYTES - 8


@pytest.mark.parametrize("place", ["sync", "coroutine"])
async def test_a_huge_result_is_encoded_off_the_loop(run, place):
    numbers = list(range(300_000))
    encoders = set()

    class Watched(BaseModel):
        def model_dump(self, **options):
            encoders.add(threading.current_thread())
            return {}

    def sync():
        return [numbers, Watched()]

    async def coroutine():
        return [numbers, Watched()]

    outcome = await run(sync if place == "sync" else coroutine)

    assert outcome.truncated
    assert threading.main_thread() not in encoders
    assert len(encoders) == 1


async def test_a_streamed_item_that_is_large_is_encoded_off_the_loop_and_stays_in_order(run):
    async def body():
        yield "first"
        yield list(range(10_000))
        yield "last"

    await run(body)

    assert run.deltas == ["first", list(range(10_000)), "last"]


# What does not end


@pytest.mark.virtual_time
async def test_a_coroutine_that_takes_too_long_is_timed_out(run):
    cleaned = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(asyncio.get_running_loop().time())

    outcome = await run(slow)

    assert (outcome.status, outcome.error.kind) == ("timeout", "timeout")
    assert outcome.result == "[timeout]\nslow gave no result within 30 s."
    assert outcome.duration_ms == 30_000
    assert (outcome.cause, outcome.abandoned) == ("timeout", False)
    assert cleaned == [30.0]
    assert run.pools.abandoned == 0


@pytest.mark.virtual_time
async def test_a_coroutine_that_ignores_its_cancel_is_left_after_the_grace_and_counted(run, caplog):
    go = asyncio.Event()

    async def stubborn():
        yield "a"
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        yield "late"

    outcome = await run(stubborn, timeout=2)

    assert (outcome.status, outcome.duration_ms) == ("timeout", 3000)
    assert outcome.result == f"[timeout]\nstubborn gave no result within 2 s. {MAY_STILL}"
    assert (outcome.cause, outcome.abandoned, outcome.emitted) == ("timeout", True, True)
    assert run.pools.abandoned == 1
    assert "body of tool stubborn did not end within 1.0 s" in caplog.text
    gc.collect()
    assert len(run.pools.tasks) == 1
    go.set()
    await until(lambda: len(run.pools.tasks) == 0)
    assert run.deltas == ["a"]


@pytest.mark.virtual_time
async def test_a_body_that_answers_its_cancel_with_a_result_is_still_too_late(run):
    async def late():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "too late"

    assert (await run(late)).status == "timeout"


@pytest.mark.virtual_time
async def test_a_thread_that_takes_too_long_is_abandoned_at_the_deadline_and_its_result_dropped(run):
    gate = Gate()
    task = start(run(gate.body, name="hung"))
    await gate.begun()
    await asyncio.get_running_loop().advance(30)
    outcome = await task

    assert (outcome.status, outcome.duration_ms) == ("timeout", 30_000)
    assert outcome.result == f"[timeout]\nhung gave no result within 30 s. {MAY_STILL}"
    assert (outcome.cause, outcome.abandoned, outcome.emitted) == ("timeout", True, False)
    assert run.pools.abandoned == 1
    assert ThreadPool.open_jobs() == 0
    gate.open()
    await until(lambda: run.pools.abandoned == 0)
    assert run.pools.get("default").late == 1


@pytest.mark.virtual_time
async def test_a_generator_that_hangs_in_its_thread_is_abandoned_with_what_it_gave(run):
    gate = Gate()

    def slow():
        yield "a"
        yield gate.body()

    task = start(run(slow))
    await gate.begun()
    await until(lambda: run.deltas)
    await asyncio.get_running_loop().advance(30)
    outcome = await task

    assert (outcome.status, outcome.abandoned, outcome.emitted) == ("timeout", True, True)
    gate.open()
    await until(lambda: run.pools.abandoned == 0)
    assert run.deltas == ["a"]


@pytest.mark.virtual_time
async def test_a_body_that_has_not_begun_at_its_deadline_never_begins(run):
    class LatePool(ThreadPool):
        """Its thread has taken the call, but gets its turn only after the caller has left."""

        async def run(self, call, *, name=""):
            try:
                return await asyncio.Event().wait()
            finally:
                call()

    class LatePools(Pools):
        def get(self, name):
            return LatePool(name)

    ran = []

    def body():
        ran.append(1)

    run.pools = LatePools()
    outcome = await run(body)

    assert (outcome.status, outcome.abandoned, ran) == ("timeout", False, [])


@pytest.mark.virtual_time
async def test_waiting_for_a_thread_counts_in_the_timeout_and_a_full_pool_says_so(run):
    gate = Gate()
    ran = []

    def waits():
        ran.append(1)

    first = start(run(gate.body, name="hung", pool="tiny"))
    await gate.begun()
    second = start(run(waits, pool="tiny", timeout=5))
    await until(lambda: run.pools.get("tiny").queued == 1)
    third = await run(waits, pool="tiny")
    await asyncio.get_running_loop().advance(30)

    assert "pool 'tiny' is saturated" in third.result
    assert third.status == "error"
    assert (await second).status == "timeout"
    assert (await second).duration_ms == 5000
    assert ((await second).abandoned, (await first).abandoned) == (False, True)
    assert (await first).status == "timeout"
    gate.open()
    await until(lambda: run.pools.abandoned == 0)
    assert ran == []


@pytest.mark.virtual_time
async def test_hung_threads_do_not_hold_up_the_other_calls_of_a_turn(run):
    gates = [Gate() for _ in range(40)]
    hung = [start(run(gate.body, name=f"hung-{number}")) for number, gate in enumerate(gates)]
    for gate in gates:
        await gate.begun()

    def quick(n: int):
        return n

    outcomes = await asyncio.gather(*(run(quick, {"n": number}) for number in range(88)))
    assert [outcome.result for outcome in outcomes] == [f"[success]\n{number}" for number in range(88)]
    await asyncio.get_running_loop().advance(30)
    assert {(await task).status for task in hung} == {"timeout"}
    assert run.pools.abandoned == 40
    for gate in gates:
        gate.open()
    await until(lambda: run.pools.abandoned == 0)


@pytest.mark.virtual_time
async def test_an_observable_that_never_ends_is_disposed_at_the_deadline(run):
    disposed = []

    def forever():
        return reactivex.never().pipe(operators.finally_action(lambda: disposed.append(1)))

    assert (await run(forever)).status == "timeout"
    assert disposed == [1]


@pytest.mark.virtual_time
async def test_a_cancel_of_the_caller_stops_the_body_and_is_raised(run):
    stopped = []

    async def body():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            stopped.append("asked")
            await asyncio.sleep(0.5)
            stopped.append("cleaned")
            raise

    task = start(run(body))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert stopped == ["asked", "cleaned"]
    assert asyncio.get_running_loop().time() == 1.5
    assert len(run.pools.tasks) == 0


@pytest.mark.virtual_time
async def test_a_cancel_of_the_caller_waits_no_longer_than_the_grace(run):
    go = asyncio.Event()

    async def body():
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    task = start(run(body))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert asyncio.get_running_loop().time() == 2.0
    assert run.pools.abandoned == 1
    go.set()
    await until(lambda: len(run.pools.tasks) == 0)


async def test_a_cancel_of_the_caller_leaves_a_thread_at_once(run):
    gate = Gate()
    task = start(run(gate.body, name="hung"))
    await gate.begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert run.pools.abandoned == 1
    gate.open()
    await until(lambda: run.pools.abandoned == 0)


async def test_bodies_survive_the_garbage_collector(run):
    async def body():
        for _ in range(20):
            gc.collect()
            await asyncio.sleep(0)
        return "done"

    assert (await run(body)).result == "[success]\ndone"
