import asyncio
import shlex
import signal
import sys

import pytest

from agentflow import Agent, tool
from agentflow.cli.chat import converse
from agentflow.errors import ModelTimeoutError
from agentflow.events import EventType
from agentflow.models.scripted import ScriptedModel, call
from agentflow.settings import Settings
from agentflow.streams import LoopClock
from agentflow.testing import FakeProvider, Reset, Stall, assert_laws, status, text, tool_calls

ONCE = Settings(model={"retries": {"attempts": 1}})

NOISY = """
import subprocess
from agentflow import tool

print("imported")

@tool
def shout(word: str) -> str:
    print("called")
    subprocess.run(["echo", "from a process"], check=True)
    return word.upper()
"""

STUBBORN = """
import asyncio, sys, time
from agentflow import tool

@tool
async def hold() -> str:
    print("begun", file=sys.stderr, flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("ignored", file=sys.stderr, flush=True)
    while True:  # from here on the event loop never comes to anything else
        time.sleep(1)

@tool(timeout=0.01)
async def stay() -> str:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""

PAYING = """
from agentflow import tool
from agentflow.tools import ask_user

@tool(approval=lambda arguments: "more than 100" if arguments["amount"] > 100 else None)
def refund(order_id: str, amount: int) -> str:
    return f"paid back {amount} for {order_id}"
"""


@tool(approval=True)
async def refund(amount: int) -> str:
    """Pay back."""
    return f"paid back {amount}"


def paying(*turns, **options):
    return Agent(model=ScriptedModel(*turns), tools=[refund], settings=ONCE, **options)


def last(finished):
    return finished.events[-1]


async def test_json_gives_the_events_of_the_run_and_nothing_else(chat, tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    async with FakeProvider(tool_calls(("shout", {"word": "hey"})), text("It says HEY.")) as provider:
        done = await chat(provider, "Shout hey", "--json", "--tools", "noisy")
    assert done.code == 0
    assert_laws(done.events)
    assert last(done).text == "It says HEY."
    assert [record.result for record in last(done).tools] == ["[success]\nHEY"]
    assert [line for line in done.err.splitlines() if line] == ["imported", "called", "from a process"]


async def test_a_person_sees_text_and_a_card_per_call(chat):
    script = tool_calls(("calculator", {"expression": "2+3*4"}), content="Let me see.")
    async with FakeProvider(script, text("It is 14.")) as provider:
        done = await chat(provider, "What is 2+3*4?")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[:2] == ["Let me see.", '● calculator(expression="2+3*4")']
    assert lines[2].startswith("└ calculator (")
    assert lines[2].endswith("ms): 14")
    assert lines[3:] == ["It is 14."]


async def test_text_that_the_terminal_has_no_letters_for_does_not_stop_it(chat):
    async with FakeProvider(text("Grüße")) as provider:
        done = await chat(provider, "Hello", PYTHONIOENCODING="ascii")
    assert (done.code, done.out) == (0, "Gr??e\n")


async def test_flags_and_settings_reach_the_provider(chat):
    settings = {"AGENTFLOW_MODEL__TEMPERATURE": "0.5", "AGENTFLOW_MODEL__MAX_TOKENS": "7"}
    async with FakeProvider(text("Hi."), text("Hi.")) as provider:
        await chat(provider, "Hello", "--system", "Be brief.", **settings)
        await chat(provider, "Hello", "--tools", "none")
    told, plain = (request.body for request in provider.requests)
    assert told["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [entry["function"]["name"] for entry in told["tools"]] == ["calculator", "current_time"]
    assert (told["temperature"], told["max_tokens"]) == (0.5, 7)
    assert plain.keys().isdisjoint({"tools", "temperature", "max_tokens"})


async def test_each_line_of_standard_input_is_a_message_of_one_session(chat):
    async with FakeProvider(text("One."), text("Two.")) as provider:
        done = await chat(provider, "--json", "--session", "s1", stdin="first\n\n   \nzweite ü\n".encode())
    ends = [event for event in done.events if event.type == EventType.FINAL]
    assert (done.code, [end.text for end in ends]) == (0, ["One.", "Two."])
    assert {event.session_id for event in done.events} == {"s1"}
    said = [message["content"] for message in provider.requests[1].body["messages"]]
    assert said == ["first", "One.", "zweite ü"]


async def test_a_session_without_an_id_gets_one_that_all_lines_share(chat):
    async with FakeProvider(text("One."), text("Two.")) as provider:
        done = await chat(provider, "--json", stdin=b"first\nsecond")
    assert len({event.session_id for event in done.events}) == 1


async def test_a_dash_reads_all_of_standard_input_as_one_message(chat):
    async with FakeProvider(text("Yes.")) as provider:
        done = await chat(provider, "-", stdin=b"two\nlines \xff\n")
    assert done.out == "Yes.\n"
    assert provider.requests[0].body["messages"][-1]["content"] == "two\nlines \ufffd\n"


async def test_the_first_run_that_is_not_final_is_the_last(chat):
    async with FakeProvider(text("One."), status(500), text("Three.")) as provider:
        done = await chat(provider, stdin=b"1\n2\n3\n")
    assert (done.code, done.out, len(provider.requests)) == (1, "One.\n", 2)
    assert done.err.splitlines() == [
        f"agentflow: the run failed (status): {provider.base_url!r} answered 500: scripted status 500"
    ]


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (status(404, b'{"error":{"message":"The model `fake` does not exist"}}'), 2, "check the model (--model)"),
        (status(400, b'{"message":"Invalid model: fake"}'), 2, "check the model (--model)"),
        (status(400, b'{"message":"the context is too long"}'), 1, "the context is too long"),
        (status(401), 2, "check the provider's key"),
        (status(429), 1, "(rate_limit)"),
        ((Reset(),), 2, "--base-url"),
        ((text("Half an answer").steps[0], Reset()), 1, "(truncated)"),
    ],
    ids=["404", "400 that names the model", "another 400", "401", "429", "reset", "reset in the answer"],
)
async def test_the_exit_code_tells_wrong_setup_from_a_failed_run(chat, reply, code, words):
    async with FakeProvider(reply) as provider:
        done = await chat(provider, "Hello", "--json")
    assert done.code == code
    assert_laws(done.events)
    assert last(done).type == EventType.FAILED
    assert len(done.err.splitlines()) == 1
    assert words in done.err


def test_a_server_that_accepts_no_connection_is_wrong_setup():
    agent = Agent(model=ScriptedModel([ModelTimeoutError("'x' did not accept a connection within 5 s")]), settings=ONCE)
    lines = []
    assert converse(agent, ["Hello"], lambda event: None, lines.append) == 2
    assert len(lines) == 1


def test_a_patient_conversation_goes_on_after_a_failed_run():
    agent = Agent(model=ScriptedModel([ModelTimeoutError("too slow")], "Here I am."), settings=ONCE)
    events, lines = [], []
    assert converse(agent, ["Hello", "Hello?"], events.append, lines.append, patient=True) == 0
    assert events[-1].text == "Here I am."
    assert lines == ["the run failed (timeout): too slow"]


async def test_a_host_that_is_not_there_is_a_line_and_exit_code_2(agentflow):
    flags = ("--model", "m", "--base-url", "http://127.0.0.1:1/v1")
    twice = {"AGENTFLOW_MODEL__RETRIES__ATTEMPTS": "2", "AGENTFLOW_MODEL__RETRIES__BASE": "1ms"}
    async with agentflow("chat", "Hello", *flags, **twice) as command:
        done = await command.finished()
    assert done.code == 2
    assert len(done.out.splitlines()) == 1
    assert done.out.startswith("warning: 'http://127.0.0.1:1/v1' failed")
    assert len(done.err.splitlines()) == 1
    assert "127.0.0.1:1" in done.err
    assert "check that the server runs" in done.err


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "user"), (signal.SIGTERM, "shutdown")])
async def test_a_signal_cancels_the_run(agentflow, number, reason):
    async with FakeProvider((text("Long story").steps[0], Stall())) as provider:
        flags = ("--base-url", provider.base_url, "--model", "m")
        async with agentflow("chat", "Tell me", "--json", *flags) as command:
            await provider.received()
            command.interrupt(number)
            done = await command.finished()
        await provider.idle()
    assert done.code == 130
    assert_laws(done.events)
    assert (last(done).type, last(done).reason) == (EventType.CANCELLED, reason)
    assert provider.requests[0].ended == "client_left"


async def test_a_ctrl_c_that_was_ignored_at_the_start_stays_ignored(agentflow):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command inherits it
    async with FakeProvider((text("Long story").steps[0], Stall())) as provider:
        flags = ("--base-url", provider.base_url, "--model", "m")
        async with agentflow("chat", "Tell me", "--json", *flags) as command:
            await provider.received()
            command.interrupt()
            command.interrupt(signal.SIGTERM)
            done = await command.finished()
    assert done.code == 130
    assert (last(done).type, last(done).reason) == (EventType.CANCELLED, "shutdown")


async def test_a_run_that_does_not_end_in_its_time_has_failed(chat):
    async with FakeProvider((text("Long story").steps[0], Stall())) as provider:
        done = await chat(provider, "Tell me", "--json", AGENTFLOW_CHAIN__TIMEOUT="50ms")
    assert done.code == 1
    assert (last(done).type, last(done).reason) == (EventType.CANCELLED, "timeout")
    assert done.err == "agentflow: the run did not end within its time: chain.timeout sets it\n"


async def test_a_second_ctrl_c_leaves_whatever_a_tool_does(agentflow, tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    async with FakeProvider(tool_calls(("hold", {}))) as provider:
        flags = ("--base-url", provider.base_url, "--model", "m", "--tools", "stubborn")
        async with agentflow("chat", "Go", *flags) as command:
            await command.says("begun")
            command.interrupt()
            await command.says("ignored")
            command.interrupt()
            done = await command.finished()
    assert done.code == 130


async def test_a_tool_that_ignores_its_cancel_does_not_keep_the_command(chat, tmp_path):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    async with FakeProvider(tool_calls(("stay", {})), text("That failed: it took too long.")) as provider:
        done = await chat(provider, "Go", "--tools", "stubborn")
    assert done.code == 0
    assert "[timeout] stay gave no result within 0.01 s." in done.out
    assert done.out.endswith("\nThat failed: it took too long.\n")


async def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    async with FakeProvider(respond=lambda _: text("Hello")) as provider:
        command = f"{sys.executable} -m agentflow chat --model m --base-url {provider.base_url}"
        for output in ("", "--json"):
            process = await asyncio.create_subprocess_exec(
                *shlex.split("bash -o pipefail -c"),
                f"yes | {command} {output} | head -n 1",
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate()
            assert (process.returncode, len(out.splitlines()), err) == (130, 1, b"")


async def test_on_a_terminal_messages_are_asked_for_until_quit(on_terminal):
    calls = tool_calls(("calculator", {"expression": "1+1"}))
    scripts = (calls, text("It is 2."), status(500), text("Here again."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider) as (process, terminal):
        for number, (keys, answer) in enumerate([("1+1?", "It is 2."), ("?", "500"), ("so?", "Here again.")], 1):
            await terminal.shows("> ", number)
            terminal.type(f"{keys}\r")
            await terminal.shows(answer)
        await terminal.shows("> ", 4)
        terminal.type("/quit\r")
        assert await process.wait() == 0
    assert "\x1b[32m└ calculator" in terminal.shown
    assert provider.requests[-1].body["messages"][0] == {"role": "user", "content": "1+1?"}


async def test_no_color_is_respected_and_ctrl_c_at_the_prompt_leaves(on_terminal, wait_until_asleep):
    scripts = (tool_calls(("calculator", {"expression": "1+1"})), text("It is 2."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider, NO_COLOR="1") as (process, terminal):
        await terminal.shows("> ")
        terminal.type("1+1?\r")
        await terminal.shows("> ", 2)
        wait_until_asleep(process)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert "\n└ calculator" in terminal.shown
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_without_a_person_a_run_that_waits_for_one_is_cancelled_and_has_failed(chat, tmp_path, flags):
    (tmp_path / "paying.py").write_text(PAYING)
    asked = [
        ("refund", {"order_id": "B", "amount": 250}),
        ("ask_user", {"question": "Sure?", "options": ["yes", "no"]}),
    ]
    async with FakeProvider(tool_calls(*asked)) as provider:
        done = await chat(provider, *flags, "--tools", "paying", stdin=b"Pay back B\nand C\n")
    assert (done.code, len(provider.requests)) == (1, 1)
    assert done.err.splitlines() == [
        'agentflow: nobody can decide here: refund(order_id="B", amount=250) waits for approval (more than 100)',
        "agentflow: nobody can decide here: the agent asks: Sure? (yes, no)",
    ]
    if flags:
        assert_laws(done.events)
        assert (last(done).type, last(done).reason) == (EventType.CANCELLED, "disconnect")
    else:
        assert done.out.endswith("(cancelled: disconnect)\n")


def test_nothing_begins_before_all_decisions_are_made():
    def ask(waiting):
        seen.append([event.type for event in events].count(EventType.TOOL_START))
        return lambda chain: chain.approve(waiting.call_id, waiting.arguments_hash)

    events, seen = [], []
    agent = paying([call("refund", amount=1), call("refund", amount=2)], "Both are paid back.")
    assert converse(agent, ["Pay"], events.append, print, ask=ask) == 0
    assert seen == [0, 0]
    assert [record.result for record in events[-1].tools] == ["[success]\npaid back 1", "[success]\npaid back 2"]


def test_a_decision_that_does_not_fit_is_told_and_taken_once_more():
    decisions = [
        lambda chain: chain.amend(waiting[-1], {"amount": "a lot"}),
        lambda chain: chain.amend(waiting[-1], {"amount": 3}),
    ]
    waiting, events, lines = [], [], []

    def ask(asked):
        waiting.append(asked.call_id)
        return decisions[len(waiting) - 1]

    assert converse(paying([call("refund", amount=1)], "Paid."), ["Pay"], events.append, lines.append, ask=ask) == 0
    assert events[-1].tools[0].result == "[success]\npaid back 3"
    assert len(lines) == 1
    assert "amount" in lines[0]


class Patience(LoopClock):
    """Keeps what is to happen in a day, for a test to let it happen."""

    def call_later(self, delay, callback):
        if delay == 86400:
            self.expire = callback
        return super().call_later(delay, callback)


def test_a_decision_after_its_time_is_told_and_does_not_count():
    clock, events, lines = Patience(), [], []

    def ask(waiting):
        asyncio.get_running_loop().call_soon(clock.expire)
        return lambda chain: chain.approve(waiting.call_id)

    agent = paying([call("refund", amount=1)], "It was not paid back: nobody approved.", clock=clock)
    assert converse(agent, ["Pay"], events.append, lines.append, ask=ask) == 0
    assert events[-1].tools[0].status == "rejected"
    assert len(lines) == 1
    assert "waits for no" in lines[0]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [(EOFError(), "user"), (KeyboardInterrupt(signal.SIGINT), "user"), (KeyboardInterrupt(signal.SIGTERM), "shutdown")],
)
def test_a_person_who_does_not_decide_cancels_the_run(raised, reason):
    def ask(waiting):
        raise raised

    events = []
    assert converse(paying([call("refund", amount=1)]), ["Pay", "More"], events.append, print, ask=ask) == 130
    assert_laws(events)
    assert (events[-1].type, events[-1].reason) == (EventType.CANCELLED, reason)
