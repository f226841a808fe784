"""The text that Prometheus reads."""

from agentflow.observability.instruments import observe
from agentflow.observability.prometheus import Exposition


def test_the_format_is_the_one_that_is_accepted():
    exposition = Exposition()
    exposition.meter.create_counter("agentflow.runs", description="Runs.").add(2, {"agent": "a"})
    text, kind = exposition.text()
    assert kind.startswith("text/plain; version=0.0.4")
    assert 'agentflow_runs_total{agent="a"} 2.0\n' in text.decode()
    text, kind = exposition.text("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    exposition.close()


def test_two_servers_of_a_process_do_not_count_for_each_other():
    one, other = Exposition(), Exposition()
    one.meter.create_counter("agentflow.runs", description="Runs.").add(1)
    assert b"agentflow_runs" in one.text()[0]
    assert b"agentflow_runs" not in other.text()[0]
    one.close()
    other.close()
    assert one.text()[0] == b""


def test_what_cannot_be_read_leaves_the_rest_as_it_is():
    def fails():
        raise RuntimeError("not now")

    exposition = Exposition()
    observe(exposition.meter, "gauge", "agentflow.bad", "{thing}", "Bad.", fails)
    observe(exposition.meter, "gauge", "agentflow.good", "{thing}", "Good.", lambda: [(3, {"of": "them"})])
    assert b'agentflow_good{of="them"} 3.0' in exposition.text()[0]
    exposition.close()
