import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agentflow.memory.facts import correct, extract, relevant, supersede
from agentflow.models.base import estimate_tokens
from agentflow.stores.base import Fact
from agentflow.stores.in_memory import InMemoryStore
from tests.memory.histories import call, result, says, turn, user


def fact(number, text, subject="", confidence=0.9, **fields):
    return Fact(id=f"f{number}", user_id="u", text=text, subject=subject, confidence=confidence, **fields)


def texts(facts):
    return [one.text for one in facts]


def test_a_turn_gives_facts_with_their_source_and_how_sure_they_are():
    asked = (user("My name is Ana."), says("", call("a", "{}", "balance")), result("a", "[success]\n12"))
    said = turn(*asked, says("Due on 3/4."), number=7)
    found = extract([said], 7, "u", "2026-01-01T00:00:00Z")
    assert [(one.subject, one.text, one.confidence) for one in found] == [
        ("name", "My name is Ana.", 0.9),
        ("balance()", "balance(): 12", 0.8),
        ("", "Due on 3/4.", 0.7),
    ]
    assert {(one.run_id, one.turn, one.user_id, one.created_at) for one in found} == {
        ("run7", 7, "u", "2026-01-01T00:00:00Z")
    }


def test_a_turn_that_is_looked_at_again_with_others_gives_no_fact_twice():
    turns = [turn(user(f"My cat is {n}. My dog is {n}."), says(), number=n) for n in range(1, 4)]
    apart = [fact for n, one in enumerate(turns, 1) for fact in extract([one], n, "u")]
    assert list(extract(turns, 1, "u")) == apart
    assert len({fact.id for fact in apart}) == 6


def test_a_newer_fact_of_the_same_subject_supersedes_the_older():
    old = fact(1, "I live in Oslo.", "home")
    new = fact(2, "I moved to Bergen.", "home")
    assert supersede([old], [new]) == (msgspec.structs.replace(old, superseded_by="f2"), new)


def test_facts_that_come_together_supersede_each_other_in_their_order():
    put = supersede([], [fact(1, "I live in Oslo.", "home"), fact(2, "I live in Rome.", "home"), fact(3, "Likes tea.")])
    assert [(one.id, one.superseded_by) for one in put] == [("f1", "f2"), ("f2", None), ("f3", None)]


def test_what_is_known_already_is_not_put_again():
    known = [fact(1, "I live in Oslo.", "home"), fact(2, "Likes tea.")]
    assert supersede(known, [fact(3, "I live in Oslo.", "home"), fact(4, "Likes tea."), *known]) == ()


def test_a_fact_that_was_superseded_does_not_come_back_by_being_found_again():
    old, new = fact(1, "I live in Oslo.", "home"), fact(2, "I live in Rome.", "home")
    known = [msgspec.structs.replace(old, superseded_by="f2"), new]
    assert supersede(known, [old, new]) == ()


def test_a_fact_that_was_superseded_may_come_true_again():
    known = [fact(1, "I live in Oslo.", "home", superseded_by="f2"), fact(2, "I live in Rome.", "home")]
    put = supersede(known, [fact(3, "I live in Oslo.", "home")])
    assert [(one.id, one.superseded_by) for one in put] == [("f2", "f3"), ("f3", None)]


def test_a_fact_without_a_subject_supersedes_nothing():
    assert supersede([fact(1, "Likes tea.")], [fact(2, "Likes dogs.")]) == (fact(2, "Likes dogs."),)


def test_a_correction_is_sure_and_supersedes():
    right, wrong = correct(fact(1, "I live in Oslo.", "home", 0.7), "I live in Rome.", "f9", "2026-01-01T00:00:00Z")
    assert (right.text, right.subject, right.confidence, right.id) == ("I live in Rome.", "home", 1.0, "f9")
    assert wrong.superseded_by == "f9"


async def test_a_store_lists_the_newest_fact_of_each_subject_and_forgets_a_deleted_one():
    store = InMemoryStore()
    for number, place in enumerate(("Oslo", "Rome", "Bergen"), 1):
        known = await store.list_facts("u")
        await store.put_facts(supersede(known, [fact(number, f"I live in {place}.", "home")]))
    assert texts(await store.list_facts("u")) == ["I live in Bergen."]
    await store.put_facts(correct((await store.list_facts("u"))[0], "I live in Paris.", "f9"))
    assert texts(await store.list_facts("u")) == ["I live in Paris."]
    await store.delete_fact("u", "f9")
    assert texts(await store.list_facts("u")) == []
    await store.aclose()


# -- for a question --------------------------------------------------------------------------------------

KNOWN = (
    fact(1, "My name is Ana.", "name"),
    fact(2, "order(ORD-1): status=shipped", "order(ORD-1)", 0.8),
    fact(3, "order(ORD-2): status=lost", "order(ORD-2)", 0.8),
    fact(4, "I am allergic to nuts."),
    fact(5, "Ticket T-9 is open.", confidence=0.7),
    fact(6, "Perhaps she likes order.", confidence=0.3),
    fact(7, "I live in Oslo.", "home", superseded_by="f8"),
)


def chosen(question, budget=1000):
    return texts(relevant(KNOWN, question, budget, estimate_tokens))


def test_facts_that_share_rare_words_with_the_question_come_first():
    assert chosen("Where is ORD-2?", 8) == ["order(ORD-2): status=lost"]
    assert chosen("Are nuts an allergy?", 8) == ["I am allergic to nuts."]
    assert chosen("Which tickets?", 8) == ["Ticket T-9 is open."]


def test_what_is_chosen_stands_in_the_order_of_time():
    assert chosen("nuts in tickets") == ["My name is Ana.", "I am allergic to nuts.", "Ticket T-9 is open."]


def test_what_a_user_said_of_themself_is_always_worth_showing_and_nothing_else_is():
    assert chosen("Good morning") == ["My name is Ana.", "I am allergic to nuts."]


def test_superseded_and_unsure_facts_are_left_out():
    everything = chosen("order order lives in Oslo perhaps likes")
    assert "Perhaps she likes order." not in everything
    assert "I live in Oslo." not in everything


def test_scripts_without_spaces_are_compared_by_pairs_of_characters():
    facts = (fact(1, "我的电话是12345。"), fact(2, "我住在上海。"))
    assert texts(relevant(facts, "你知道我的电话吗", 7, estimate_tokens)) == ["我的电话是12345。"]


@given(st.text(max_size=50), st.integers(0, 60))
def test_what_is_chosen_stays_within_the_budget(question, budget):
    assert sum(estimate_tokens(text) for text in chosen(question, budget)) <= budget
