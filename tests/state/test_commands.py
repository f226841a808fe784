"""What is asked for, in the order in which it is to be done."""

from agentflow.state import CallModel, CompleteTool, Finish, Notice, RefuseTool, RunTool
from tests import builders as b


def test_a_message_asks_the_model():
    assert b.Fold().add(b.begin()) == (CallModel("r", iteration=1),)


def test_an_answer_finishes_with_the_reason_of_the_reply():
    fold = b.Fold().all(b.begin(), b.model_start())
    assert fold.add(b.model_complete()) == (Finish("r", "stop"),)
    fold = b.Fold().all(b.begin(), b.model_start())
    assert fold.add(b.model_complete(finish_reason="length")) == (Finish("r", "length"),)


def test_calls_are_run_in_the_models_order_as_far_as_there_is_room():
    fold = b.Fold(max_parallel_tools=2).all(b.begin(), b.model_start())
    assert fold.add(b.model_complete("c1", "c2", "c3", "c4")) == (RunTool("r", "c1"), RunTool("r", "c2"))
    fold.all(b.tool_start("c1"), b.tool_start("c2"))
    assert fold.add(b.tool_complete("c2")) == (RunTool("r", "c3"),)
    fold.add(b.tool_start("c3"))
    assert fold.add(b.tool_error("c1")) == (RunTool("r", "c4"),)
    fold.add(b.tool_start("c4"))
    assert fold.add(b.tool_complete("c3")) == ()
    assert fold.add(b.tool_complete("c4")) == (CallModel("r", iteration=2),)


def test_calls_of_a_cut_reply_are_refused():
    fold = b.Fold().all(b.begin(), b.model_start())
    commands = fold.add(b.model_complete("c1", "c2", finish_reason="length"))
    assert [(type(c), c.call_id, c.status, c.kind) for c in commands] == [
        (RefuseTool, "c1", "invalid_arguments", "truncated"),
        (RefuseTool, "c2", "invalid_arguments", "truncated"),
    ]


def test_at_the_limit_calls_are_refused_and_a_notice_ends_the_run():
    fold = b.Fold(max_iterations=1).all(b.begin(), b.model_start())
    (refusal,) = fold.add(b.model_complete("c1"))
    assert (refusal.status, "limit of 1 model rounds" in refusal.message) == ("limit", True)
    fold.add(b.tool_start("c1"))
    (notice,) = fold.add(b.tool_error("c1", status="limit"))
    assert (type(notice), notice.finish_reason) == (Notice, "max_iterations")


def test_a_rollback_asks_for_the_next_attempt():
    fold = b.Fold().all(b.begin(), b.model_start(), b.delta("half"))
    assert fold.add(b.rollback()) == (CallModel("r", iteration=1, attempt=2),)


def test_decisions_run_refuse_or_complete_the_call():
    for decision, expected in (
        ("approved", RunTool),
        ("amended", RunTool),
        ("rejected", RefuseTool),
        ("expired", RefuseTool),
    ):
        fold = b.Fold().all(b.begin(), b.model_start(), b.model_complete("c1"), b.approval("c1"))
        (command,) = fold.add(b.resolved("c1", decision))
        assert (type(command), command.call_id) == (expected, "c1")
    asked = (b.begin(), b.model_start(), b.model_complete("c1"), b.tool_start("c1"), b.question("c1"))
    fold = b.Fold().all(*asked)
    assert fold.add(b.resolved("c1", "answered", text="blue")) == (CompleteTool("r", "c1", "blue"),)


def test_nothing_follows_from_a_cancelled_call():
    fold = b.Fold().all(b.begin(), b.model_start(), b.model_complete("c1"), b.tool_start("c1"))
    assert fold.add(b.tool_error("c1", status="cancelled")) == ()
