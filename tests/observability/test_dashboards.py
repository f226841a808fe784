"""The files that come with the package hold together."""

import json
import re

import pytest

from agentflow.errors import ConfigError
from agentflow.observability.dashboards import FILES, export, text_of
from tests.observability.expressions import alerts, expressions

BOARD = json.loads(text_of("agentflow.json"))


def test_the_dashboard_asks_for_its_data_source_and_can_be_narrowed_to_agents_and_models():
    assert BOARD["schemaVersion"] >= 39
    assert BOARD["uid"] == "agentflow"
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "agent", "model"]
    assert BOARD["__inputs"][0]["name"] == "DS_PROMETHEUS"
    shown = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in shown)
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in shown)


def test_no_two_panels_overlap_or_share_an_id():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_rates_are_over_what_grafana_finds_fit():
    for expression in expressions():
        assert set(re.findall(r"\[(.*?)\]", expression)) <= {"$__rate_interval", "$__range"}


def test_every_alert_says_what_is_wrong_and_what_to_do():
    found = alerts()
    assert len(found) >= 10
    for alert in found:
        assert alert["annotations"].keys() == {"summary", "action"}
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert len({alert["alert"] for alert in found}) == len(found)


def test_they_are_written_to_a_directory_that_is_made(tmp_path):
    written = export(tmp_path / "new" / "place")
    assert [path.name for path in written] == list(FILES)
    assert all(path.read_text(encoding="utf-8") == text_of(path.name) for path in written)


def test_where_they_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="dashboards cannot be written"):
        export(tmp_path / "file" / "below")
