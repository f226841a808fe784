"""What the dashboard and the alerts ask Prometheus."""

import json
import re

from agentflow.observability.dashboards import text_of


def expressions():
    """Every expression of the dashboard, as it stands there."""
    board = json.loads(text_of("agentflow.json"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def queries():
    """The same with values for its variables."""
    values = {"$__rate_interval": "1m", "$__range": "1h", "$agent": ".*", "$model": ".*"}
    return [re.sub(r"\$\w+", lambda found: values[found[0]], expression) for expression in expressions()]


def alerts():
    """Every alert as a mapping. The file is read here by its lines: it needs no more of YAML."""
    found = []
    for line in text_of("alerts.yaml").splitlines():
        name, _, value = line.strip().removeprefix("- ").partition(": ")
        if name == "alert":
            found.append({"alert": value, "annotations": {}})
        elif name == "expr":
            found[-1]["expr"] = value
        elif name == "labels":
            found[-1]["labels"] = dict(re.findall(r"(\w+): (\w+)", value))
        elif name in ("summary", "action"):
            found[-1]["annotations"][name] = json.loads(value)
    return found


def conditions():
    """What the alerts compare with their thresholds."""
    return [re.sub(r" (>|==) [\d.]+$", "", alert["expr"]) for alert in alerts()]
