import json

import pytest

from agentflow.cli import main
from agentflow.stores.base import Fact


@pytest.fixture
def known(with_store):
    """Two facts of Ada, and one of somebody else."""
    facts = [
        Fact(id="f1", user_id="ada", text="I live in Rome", subject="home", confidence=0.9),
        Fact(id="f2", user_id="ada", text="I am allergic to nuts", confidence=0.9),
        Fact(id="f3", user_id="bob", text="I live in Oslo", subject="home"),
    ]
    with_store(lambda store: store.put_facts(facts))


@pytest.fixture
def listed(with_store):
    return lambda **options: with_store(lambda store: store.list_facts("ada", **options))


@pytest.mark.parametrize("line", ["facts --user ada", "facts list --user ada", "facts --user ada list"])
def test_the_facts_of_a_user_are_listed_with_their_ids(known, capsys, line):
    assert main(line.split()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "f1  0.90  home  I live in Rome",
        "f2  0.90  -     I am allergic to nuts",
    ]


def test_of_a_user_of_whom_nothing_is_known_there_are_no_lines(known, capsys):
    assert main(["facts", "--user", "eve"]) == 0
    assert capsys.readouterr() == ("", "")


async def test_programs_get_a_json_object_a_line(agentflow):
    async with agentflow("facts", "--user", "ada", "--json") as command:
        done = await command.finished()
    assert (done.code, [json.loads(line) for line in done.out.splitlines()]) == (0, [])


def test_a_correction_supersedes_what_was_wrong(known, listed, capsys):
    assert main(["facts", "correct", "f1", " I live\nin Milan ", "--user", "ada"]) == 0
    nuts, home = listed()
    assert (home.text, home.subject, home.confidence, home.created_at[-1]) == ("I live in Milan", "home", 1.0, "Z")
    assert capsys.readouterr().out == f"fact {home.id} has taken the place of f1\n"
    assert listed(superseded=True)[0].superseded_by == home.id
    assert nuts.id == "f2"


def test_a_deleted_fact_is_gone(known, listed, capsys):
    assert main(["facts", "delete", "f1", "--user", "ada"]) == 0
    assert ([fact.id for fact in listed()], capsys.readouterr().out) == (["f2"], "deleted fact f1\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("facts", "whose with --user"),
        ("facts delete f1", "whose with --user"),
        ("facts delete f3 --user ada", "no fact 'f3' of user 'ada'"),
        ("facts correct f9 x --user ada", "no fact 'f9' of user 'ada'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(known, capsys, line, words):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines()), words in err) == ("", 1, True)


def test_a_correction_needs_words(known, capsys):
    assert main(["facts", "correct", "f1", " ", "--user", "ada"]) == 2
    assert "there is no text" in capsys.readouterr().err
