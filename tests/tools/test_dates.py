"""Dates and times in many forms, and those that have no one reading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.tools.dates import read


@pytest.mark.parametrize(
    "text",
    [
        "2025-1-31", "2025/1/31", "2025/01/31", "2025.01.31", "20250131", "2025年1月31日", "2025 年 01 月 31 日",
        "31.01.2025", "31/01/2025", "01/31/2025", "1/31/2025", "31-01-2025", "31 January 2025", "31 jan 2025",
        "31st January, 2025", "January 31, 2025", "Jan. 31st 2025", "31-Jan-2025", "2025-01-31T00:00:00Z",
        " 2025/1/31 ", "２０２５/１/３１", "Fri, 31 Jan 2025 00:00:00 +0000",
    ],
)  # fmt: skip
def test_a_date_in_any_form_is_the_same_date(text):
    assert read(text, "date") == "2025-01-31"


@pytest.mark.parametrize(
    "text",
    [
        "02.01.2025",
        "1/2/2025",
        "31.01.25",
        "2025-02-30",
        "32.01.2025",
        "13.13.2025",
        "tomorrow",
        "",
        "1738281600",
        "2025-01-31T12:00:00",
        "31 Janxyz 2025",
        "2025-01/31",
        "0000-01-01",
        "x" * 1000,
        "31 January",
    ],
)
def test_what_is_no_one_date_is_not_read(text):
    assert read(text, "date") is None


def test_a_day_that_is_its_month_has_one_reading():
    assert read("02.02.2025", "date") == "2025-02-02"


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2025/1/31 9:05", "2025-01-31T09:05:00"),
        ("20250131 09:05:00", "2025-01-31T09:05:00"),
        ("31.01.2025 21:05:07.25", "2025-01-31T21:05:07.25"),
        ("Jan 31, 2025 9:05 PM", "2025-01-31T21:05:00"),
        ("31 January 2025, 12:00 am", "2025-01-31T00:00:00"),
        ("2025年1月31日9:05", "2025-01-31T09:05:00"),
        ("2025/1/31 9:05Z", "2025-01-31T09:05:00Z"),
        ("2025/1/31 9:05 UTC", "2025-01-31T09:05:00Z"),
        ("2025/1/31 9:05+0900", "2025-01-31T09:05:00+09:00"),
        ("2025/1/31T9:05 -03:30", "2025-01-31T09:05:00-03:30"),
        ("Fri, 31 Jan 2025 09:05:00 +0200", "2025-01-31T09:05:00+02:00"),
        ("Fri, 31 Jan 2025 09:05:00 EST", "2025-01-31T09:05:00-05:00"),
        ("Fri, 31 Jan 2025 09:05 GMT", "2025-01-31T09:05:00+00:00"),
        ("Fri, 31 Jan 2025 09:05:00", "2025-01-31T09:05:00"),
        ("2025/1/31", "2025-01-31T00:00:00"),
        ("1738281600", "2025-01-31T00:00:00Z"),
    ],
)
def test_a_moment_keeps_its_zone_and_without_one_has_none(text, iso):
    assert read(text, "date-time") == iso


@pytest.mark.parametrize(
    "text",
    [
        "1/2/2025 9:05", "2025/1/31 25:00", "9:05", "1738281600000", "12345", "Fri, x", "2025/1/31 9:05 PST",
        "Fri, 31 Jan 2025 09:05:00 XYZ", "Fri, 31 Jan 2025 09:05:00 -0000", "Fri, 31 Jan 2025 09:05:00 GMT x",
    ],
)  # fmt: skip
def test_what_is_no_one_moment_is_not_read(text):
    assert read(text, "date-time") is None


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("9:05", "09:05:00"),
        ("9:05 pm", "21:05:00"),
        ("12:30 a.m.", "00:30:00"),
        ("21:05:07", "21:05:07"),
        ("9:05Z", "09:05:00Z"),
        ("0905", None),
        ("13:00 pm", None),
        ("24:00", None),
        ("9", None),
    ],
)
def test_a_time_of_day_is_read(text, iso):
    assert read(text, "time") == iso


def test_other_formats_are_nobody_s_business():
    assert read("2025/1/31", "uuid") is None


@given(st.text(), st.sampled_from(["date", "time", "date-time"]))
def test_any_text_is_read_or_not(text, form):
    assert read(text, form) is None or read(text, form)
