import io

import pytest

from agentflow.cli.screen import MAX_RESULT_LINES, PlainConsole, Screen
from agentflow.events import (
    CancelledEvent,
    DeltaEvent,
    ErrorInfo,
    FinalEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RollbackEvent,
    ToolCompleteEvent,
    ToolDeltaEvent,
    ToolErrorEvent,
    ToolStartEvent,
    WarningEvent,
)
from agentflow.messages import Usage

COMMON = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
CALL = {"call_id": "c", "tool": "find"}


def delta(text, **fields):
    return DeltaEvent(text=text, **COMMON | fields)


def complete(result):
    return ToolCompleteEvent(result=result, duration_ms=12.4, **CALL, **COMMON)


def piece(data, call_id="c"):
    return ToolDeltaEvent(data=data, **CALL | COMMON | {"call_id": call_id})


def final(finish_reason="stop"):
    return FinalEvent(text="", finish_reason=finish_reason, usage=Usage(), iterations=1, duration_ms=1.0, **COMMON)


def shown(*events, **options):
    file = io.StringIO()
    screen = Screen(PlainConsole(file=file, width=20, **options))
    for event in events:
        screen.show(event)
    return file.getvalue()


TERMINAL = {"force_terminal": True, "color_system": "standard", "no_color": False}


def test_text_is_written_as_it_comes_and_its_line_ended_once():
    text = "a long line that no terminal width may break\n\tand a tab"
    assert shown(delta(text), delta(" and on."), final()) == f"{text} and on.\n"


def test_text_is_text_whatever_it_looks_like():
    assert shown(delta("[bold]no markup[/bold] :smile: http://x"), final()) == (
        "[bold]no markup[/bold] :smile: http://x\n"
    )


@pytest.mark.parametrize("options", [{}, TERMINAL], ids=["piped", "terminal"])
def test_a_model_cannot_drive_the_terminal(options):
    attack = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x08\x7f\x00x"
    error = ErrorInfo(kind="failed", message=attack)
    out = shown(
        delta(attack),
        delta(attack, channel="reasoning"),
        ToolStartEvent(arguments={"text": attack}, raw_arguments="", **CALL, **COMMON),
        ToolStartEvent(arguments=None, raw_arguments=attack, call_id="d", tool=attack, **COMMON),
        complete(f"[success]\n{attack}"),
        ToolErrorEvent(status="error", error=error, result=attack, **CALL, **COMMON),
        WarningEvent(code="x", message=attack, **COMMON),
        final(),
        **options,
    )
    styles = ["\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[33m", "\x1b[2m", "\x1b[0m"]
    for style in styles:  # our own
        out = out.replace(style, "")
    assert all(character.isprintable() or character == "\n" for character in out)
    assert "[2J" in out  # harmless without its escape


def test_reasoning_is_dimmed_on_a_terminal():
    out = shown(delta("Hm.", channel="reasoning"), delta("Yes."), final(), **TERMINAL)
    assert out == "\x1b[2mHm.\x1b[0m\nYes.\n"


def test_reasoning_is_folded_into_one_line_elsewhere():
    out = shown(delta("Hm. ", channel="reasoning"), delta("Hm.", channel="reasoning"), delta("Yes."), final())
    assert out == "(reasoning: 7 characters)\nYes.\n"


def test_nothing_is_coloured_without_a_terminal_or_against_no_color():
    events = [delta("Hm.", channel="reasoning"), complete("[success]\n1"), final()]
    assert "\x1b" not in shown(*events)
    assert "\x1b" not in shown(*events, **TERMINAL | {"no_color": True})


def test_a_card_shows_the_call_and_its_result():
    start = ToolStartEvent(arguments={"city": "Köln", "days": [1, None]}, raw_arguments="", **CALL, **COMMON)
    assert shown(delta("Let me see."), start, complete("[success]\n21")) == (
        'Let me see.\n● find(city="Köln", days=[1, null])\n└ find (12 ms): 21\n'
    )


def test_a_long_result_is_cut_and_a_long_call_too():
    start = ToolStartEvent(arguments={"text": "x" * 10_000}, raw_arguments="", **CALL, **COMMON)
    result = "\n".join(["[success]", *map(str, range(100))])
    lines = shown(start, complete(result)).splitlines()
    assert len(lines[0]) < 400
    assert lines[1:4] == ["└ find (12 ms):", "  0", "  1"]
    assert lines[-1] == f"  … {100 - MAX_RESULT_LINES} more lines"


def test_a_card_shows_an_error_in_one_line():
    error = ErrorInfo(kind="failed", message="boom")
    failed = ToolErrorEvent(
        status="error", error=error, result="[error: failed]\nboom", will_retry=True, **CALL, **COMMON
    )
    assert shown(failed) == "└ find (0 ms): [error: failed] boom (tried again)\n"


def test_a_card_tells_a_reused_result_and_a_further_attempt():
    start = ToolStartEvent(arguments={}, raw_arguments="", attempt=2, **CALL, **COMMON)
    reused = ToolCompleteEvent(result="[success]\n21", duration_ms=0.0, reused_from="b", **CALL, **COMMON)
    assert shown(start, reused) == "● find() (attempt 2)\n└ find (reused): 21\n"


@pytest.mark.parametrize(("status", "style"), [("degraded", "33"), ("rejected", "33"), ("loop", "31")])
def test_what_is_no_fault_is_not_red(status, style):
    error = ErrorInfo(kind=status, message="no")
    failed = ToolErrorEvent(status=status, error=error, result=f"[{status}]\nno", **CALL, **COMMON)
    assert shown(failed, **TERMINAL).startswith(f"\x1b[{style}m└ find (0 ms): [{status}] no")


def test_a_warning_that_is_said_to_the_model_is_put_in_a_persons_words():
    loop = WarningEvent(code="loop_guard", message="find was called again and again", **COMMON)
    false = WarningEvent(code="unsupported_success", message="Correct your answer.", **COMMON)
    assert shown(loop, false).splitlines() == [
        "warning: find was called again and again",
        "warning: the last tool calls have failed, and the answer did not say so; it is asked for once more",
    ]


def test_what_an_agent_below_does_stands_further_right():
    below = COMMON | {"path": ("agent", "billing"), "chain_id": "child"}
    start = ToolStartEvent(arguments={}, raw_arguments="", **CALL, **below)
    done = ToolCompleteEvent(result="[success]\none\ntwo", duration_ms=1.0, **CALL, **below)
    piece_of = ToolDeltaEvent(data="half\nand ", **CALL, **below)
    rest = ToolDeltaEvent(data="half", **CALL, **below)
    progress = ToolDeltaEvent(data={"done": 1, "total": 2}, **CALL, **below)
    assert shown(start, piece_of, rest, progress, done, delta("Done."), final()) == (
        "  ● find()\n  half\n  and half\n  find: 1 of 2\n  └ find (1 ms):\n    one\n    two\nDone.\n"
    )


def test_pieces_of_a_tools_output_are_dimmed_and_each_call_has_its_own_lines():
    pieces = [piece("one "), piece("two"), piece("other", "d"), piece({"row": 1}), delta("Answer.")]
    assert shown(*pieces) == 'one two\nother\n{"row": 1}\nAnswer.'
    assert shown(piece("one"), **TERMINAL) == "\x1b[2mone\x1b[0m"


def test_progress_is_one_line_that_changes():
    steps = [piece({"done": done, "total": 10, "message": "rows\n"}) for done in (1, 2.5)]
    out = shown(*steps, complete("[success]\nok"), **TERMINAL)
    lines = out.replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()
    assert "\rfind: 1 of 10 rows \rfind: 2.5 of 10 row\n" in out.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert len(lines) == 4  # splitlines cuts at each \r too


def test_only_the_last_state_of_progress_is_written_where_nobody_watches():
    steps = [piece({"done": done, "total": 10}) for done in range(11)]
    assert shown(*steps, complete("[success]\nok")) == "find: 10 of 10\n└ find (12 ms): ok\n"
    assert shown(piece("rows:"), steps[3], piece("more"), final()) == "rows:\nfind: 3 of 10\nmore\n"


@pytest.mark.parametrize("data", [{"done": 1}, {"done": "1", "total": 2}, [1, 2], None])
def test_other_data_is_no_progress(data):
    assert "of" not in shown(piece(data))


def test_other_events_are_a_line_each():
    out = shown(
        delta("Half"),
        RollbackEvent(attempt=1, reason="retry", **COMMON),
        WarningEvent(code="slow_tap", message="a tap\nis slow", **COMMON),
        final("length"),
        CancelledEvent(reason="user", usage=Usage(), duration_ms=1.0, **COMMON),
    )
    assert out.splitlines() == [
        "Half",
        "(void: the text of attempt 1, retry)",
        "warning: a tap is slow",
        "(ended early: length)",
        "(cancelled: user)",
    ]


def test_an_attempt_that_failed_is_told_with_what_follows_and_its_text_is_void():
    start = ModelStartEvent(provider="p", model="m", messages=1, input_tokens_estimate=1, **COMMON)
    again = WarningEvent(code="x", message="failed", data={"next": "retry", "wait_seconds": 0.46}, **COMMON)
    other = WarningEvent(code="x", message="failed", data={"next": "fallback", "wait_seconds": 0.0}, **COMMON)
    retried, fell_back = (RollbackEvent(attempt=1, reason=reason, **COMMON) for reason in ("retry", "fallback"))
    out = shown(start, again, retried, start, delta("Half"), other, fell_back, start, delta("All"), final())
    assert out.splitlines() == [
        "warning: failed; tried again in 0.5 s",
        "Half",
        "warning: failed; the next model is asked",
        "(void: the text of attempt 1, fallback)",
        "All",
    ]


def test_what_a_person_need_not_see_is_not_shown():
    done = ModelCompleteEvent(finish_reason="stop", usage=Usage(), duration_ms=1.0, **COMMON)
    assert shown(done, delta("a child's text", chain_id="child"), final()) == ""


def test_a_closed_pipe_is_the_callers_business():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    screen = Screen(PlainConsole(file=Closed()))
    with pytest.raises(BrokenPipeError):
        screen.show(delta("x"))
    with pytest.raises(BrokenPipeError):
        screen.show(complete("x"))
