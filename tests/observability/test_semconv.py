"""The names are those of the conventions."""

from agentflow.observability import semconv


def test_the_bounds_of_histograms_are_the_conventions_own():
    assert semconv.CALL_SECONDS[0] == 0.01
    assert semconv.CALL_SECONDS[-1] == 81.92
    assert semconv.TOKENS == (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
    assert all(
        list(bounds) == sorted(bounds) for bounds in (semconv.CALL_SECONDS, semconv.AGENT_SECONDS, semconv.CALLS)
    )


def test_no_two_constants_have_one_name():
    names = [value for key, value in vars(semconv).items() if key.isupper() and isinstance(value, str)]
    assert len(names) == len(set(names))
