"""Every instrument says what it is."""

import pytest

from agentflow.observability import semconv
from agentflow.observability.instruments import Instruments, Tally
from agentflow.observability.prometheus import Exposition


class Recorder:
    """A meter that keeps what is made with it."""

    def __init__(self):
        self.made = []

    def create_observable_counter(self, name, callbacks, unit="", description=""):
        self.made.append((name, unit, description))

    def create_histogram(self, name, unit="", description="", explicit_bucket_boundaries_advisory=None):
        assert explicit_bucket_boundaries_advisory
        self.made.append((name, unit, description))


@pytest.mark.parametrize("conventions", ["0.1.0", "1.41", "both"])
def test_each_has_a_name_of_its_own_a_unit_and_a_description(conventions):
    meter = Recorder()
    Instruments(meter, conventions)
    names = [name for name, _, _ in meter.made]
    assert len(names) == len(set(names))
    assert all(unit and description.endswith(".") for _, unit, description in meter.made)
    assert (semconv.INFERENCE_DURATION in names) == (conventions != "1.41")
    assert (semconv.OLD_TOKENS in names) == (conventions != "0.1.0")


def test_histograms_have_the_buckets_of_the_conventions():
    exposition = Exposition()
    instruments = Instruments(exposition.meter, "0.1.0")
    instruments.genai.duration.record(0.5)
    text = exposition.text()[0].decode()
    for bound in semconv.CALL_SECONDS:
        assert f'gen_ai_client_inference_duration_seconds_bucket{{le="{bound}"}}' in text
    exposition.close()


def test_a_tally_adds_up_for_each_set_of_labels():
    exposition = Exposition()
    tally = Tally(exposition.meter, "agentflow.things", "{thing}", "Things.")
    for amount, kind in ((2, "a"), (0, "b"), (3, "a")):
        tally.add(amount, {"kind": kind})
    text = exposition.text()[0].decode()
    assert 'agentflow_things_total{kind="a"} 5.0' in text
    assert 'agentflow_things_total{kind="b"} 0.0' in text
    exposition.close()
