import base64
import html
import json
import urllib.parse

import pytest

from agentflow.errors import ModelRateLimitError, ModelStatusError
from agentflow.models.failures import MAX_MESSAGE, error_from_body, error_from_object, mask, quoted, retry_after


def said(body, status=400, content_type="application/json", secret=""):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return str(error_from_body(status, content_type, raw, provider="acme", headers={}, secret=secret))


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such model", "type": "x", "code": None}},
        {"error": "no such model"},
        {"message": "no such model", "object": "error"},
        {"detail": "no such model"},
        {"detail": [{"loc": ["body"], "msg": "no such model"}]},
        {"error": {"message": json.dumps({"error": {"message": "no such model"}})}},
        [{"error": {"message": "no such model"}}],
        b"no such\nmodel",
    ],
)
def test_the_providers_words_are_found_in_every_shape(body):
    assert said(body, 404) == "'acme' answered 404: no such model"


def test_the_words_of_the_upstream_are_added():
    raw = json.dumps({"error": {"message": "slow down"}})
    error = {"error": {"message": "Provider returned error", "metadata": {"provider_name": "x", "raw": raw}}}
    assert said(error) == "'acme' answered 400: Provider returned error (slow down)"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"error": null}'])
def test_a_body_without_words_still_gives_an_error(body):
    assert said(body, 502).startswith("'acme' answered 502")


def test_an_html_page_becomes_one_short_line():
    page = b"<!doctype html><html><head><TITLE>\n502 Bad\nGateway </TITLE></head><body>" + b"x" * 10_000
    assert len(said(page, 502, "text/html; charset=utf-8")) < 100
    assert "502 Bad" in said(page, 502, "text/html")
    assert said(b"<html>", 502, "text/html") == "'acme' answered 502: an HTML page"


def test_hostile_bodies_give_an_error_and_no_more():
    for body in (b"\xff\xfe\x00", b"[" * 100_000, b'{"error":' * 500 + b'"x"' + b"}" * 500, b"<" * 100_000):
        assert isinstance(error_from_body(500, "", body, provider="acme", headers={}), ModelStatusError)


def test_long_words_are_cut_and_stay_one_line():
    words = said({"error": {"message": "x\n" * 10_000}})
    assert len(words) < MAX_MESSAGE + 40
    assert "\n" not in words
    assert words.endswith("…")


def test_secrets_are_masked():
    key = "weird.key/with+signs=="
    body = {
        "error": {"message": f"bad key {key}, sk-proj-abcdef123456, Bearer abc.def, gsk_0123456789 and sk-ab****yz"}
    }
    words = said(body, 401, secret=key)
    assert words == "'acme' answered 401: bad key ***, ***, ***, *** and ***"
    assert mask("a task-force of risk-free ask-me-anything") == "a task-force of risk-free ask-me-anything"


CANARY = "tok/en+CANARY=abc12345"
FORMS = {
    "as it is": CANARY,
    "in an address": urllib.parse.quote(CANARY, safe=""),
    "in an address, twice": urllib.parse.quote(urllib.parse.quote(CANARY, safe=""), safe=""),
    "in base64": base64.b64encode(CANARY.encode()).decode(),
    "in base64 for addresses": base64.urlsafe_b64encode(CANARY.encode()).decode(),
    "in base64 after a user": base64.b64encode(f"user:{CANARY}".encode()).decode(),
    "in base64 after a colon": base64.b64encode(f":{CANARY}".encode()).decode(),
    "with its slash escaped": CANARY.replace("/", "\\/"),
    "escaped twice": CANARY.replace("/", "\\\\/"),
    "as JSON of ASCII": "".join(f"\\u{ord(character):04X}" for character in CANARY),
    "as bytes of Python": "".join(f"\\x{ord(character):02x}" for character in CANARY),
    "in HTML": html.escape(CANARY).replace("/", "&#x2F;").replace("+", "&plus;").replace("=", "&#61;"),
    "in another case": CANARY.lower(),
    "over two lines": f"{CANARY[:5]}\n{CANARY[5:]}",
    "its beginning": CANARY[:8],
    "its end": CANARY[-8:],
    "from its middle": CANARY[5:15],
    "in its user": f"https://u:{CANARY}@host",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_key_in_use_is_masked_in_every_form(form):
    assert mask(f"the key «{form}» is bad", CANARY).startswith("the key «")
    assert mask(f"the key «{form}» is bad", CANARY).endswith("» is bad")
    bodies = ({"error": f"bad {form}"}, f"bad {form}".encode(), f"<title>{form}</title>".encode())
    shown = [mask(form, CANARY), quoted(form.encode(), CANARY), *(said(body, secret=CANARY) for body in bodies)]
    shown += [quoted(b"x" * cut + form.encode(), CANARY) for cut in range(60, 80)]
    for text in shown:
        for piece in (form[at : at + 12] for at in range(len(form) - 11)):
            assert piece not in text or piece in "https://u:"
        assert "canary" not in text.lower()


def test_a_cut_leaves_no_half_of_the_key():
    for before in range(MAX_MESSAGE - 60, MAX_MESSAGE):
        assert CANARY[:8] not in said(f"{'a' * before} {CANARY} {'b' * 1_000_000}".encode(), secret=CANARY)


def test_a_mask_hides_nothing_else():
    for text in ("", "short", "100 % of A &amp; B, c:\\temp\\x", "a" * 1000, "&#x110000; &unknown; %zz \\u12"):
        assert mask(text, CANARY) == text
    assert mask("a key of abc", "abc") == "a key of ***"


def test_keys_of_others_are_known_by_their_form():
    for text in ("Basic dXNlcjpodXNo", "eyJhbGciOiJIUzI1.eyJzdWIi.c2ln", "xai-0123456789", "AIzaSyA0123456789"):
        assert mask(f"got {text}.").rstrip(".") == "got ***"
    assert mask("see https://user:hush@host/v1") == "see https://***@host/v1"


def test_statuses_say_what_may_be_tried_again():
    assert not error_from_body(400, "", b"", provider="acme", headers={}).retryable
    assert error_from_body(503, "", b"", provider="acme", headers={}).retryable
    limited = error_from_body(429, "", b"", provider="acme", headers={"Retry-After": "2"})
    assert isinstance(limited, ModelRateLimitError)
    assert limited.retry_after == 2.0
    assert (limited.provider, limited.status, limited.retryable) == ("acme", 429, True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1.0),
        ("0.5", 0.5),
        ("3600", 3600.0),
        ("soon", None),
        ("", None),
        ("-1", None),
        ("1e999", None),
        ("9" * 400, None),
        ("²", None),
        ("9" * 5000, None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2025 00:00:00 +99999999999999", None),
        ("Mon, 01 Jan 2025 00:00:00 " + "+" + "9" * 5000, None),
        ("Mon, 01 Jan 2025 99:00:00 GMT", None),
        ("Mon, 30 Nov 2026 10:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 09:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_garbage_is_none(value, seconds):
    assert retry_after({"Retry-After": value, "Date": "Mon, 30 Nov 2026 10:00:00 GMT"}) == seconds


def test_a_date_to_compare_with_that_cannot_be_is_none():
    for date in ("Mon, 01 Jan 99999999999 00:00:00 GMT", "Mon, 01 Jan 2025 00:00:00 +99999999999999", "x"):
        assert retry_after({"Retry-After": "Mon, 30 Nov 2026 10:00:30 GMT", "Date": date}) is None


def test_a_date_without_a_date_to_compare_with_is_none():
    assert retry_after({"Retry-After": "Mon, 30 Nov 2026 10:00:30 GMT"}) is None
    assert retry_after({}) is None


def test_an_error_object_in_a_reply_carries_its_own_status():
    assert error_from_object({"code": 502, "message": "x"}, provider="acme").status == 502
    assert error_from_object({"status_code": "400"}, provider="acme").status == 400
    assert isinstance(error_from_object({"code": 429, "message": "x"}, provider="acme"), ModelRateLimitError)
    error = error_from_object("overloaded", provider="acme")
    assert error.status is None
    assert str(error) == "'acme' failed while it answered: overloaded"
