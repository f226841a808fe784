"""What an install of the project resolves to: stable releases only."""

from importlib.metadata import PackageNotFoundError, distribution, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = "agentflow-rx"
# OpenTelemetry's stable packages pin parts of their own that have never had a stable release; whoever takes the extra
# `otel` takes them. Nothing else may be a pre-release, and these may come from nobody else.
ONLY_BETA = {
    "opentelemetry-semantic-conventions",
    "opentelemetry-exporter-otlp-common",
    "opentelemetry-exporter-http-transport",
}
# The one that the project names itself, in the extra `prometheus` and nowhere else: it has no stable release either.
CHOSEN_BETA = {"opentelemetry-exporter-prometheus"}


def installed_closure(name):
    """Every installed distribution that an install of `name` with all its extras pulls in, with its version."""
    found, todo = {}, [(name, frozenset(distribution(name).metadata.get_all("Provides-Extra") or ()))]
    done = set()
    while todo:
        owner, extras = todo.pop()
        if (owner, extras) in done:
            continue
        done.add((owner, extras))
        try:
            found[owner] = version(owner)
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        for line in requires(owner) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def test_no_pre_release_is_in_the_resolved_set():
    closure = installed_closure(PROJECT)
    assert {"reactivex", "aiohttp", "pydantic", "typing-extensions"} <= closure.keys()
    found = {name: number for name, number in closure.items() if Version(number).is_prerelease}
    assert found.keys() <= ONLY_BETA | CHOSEN_BETA, found


def test_an_excepted_pre_release_is_pinned_by_stable_parts_of_the_same_project():
    closure = installed_closure(PROJECT)
    for name in ONLY_BETA & closure.keys():
        owners = [
            owner
            for owner in closure
            for line in requires(owner) or ()
            if canonicalize_name(Requirement(line).name) == name and "extra" not in line
        ]
        assert owners, name
        assert all(owner.startswith("opentelemetry-") for owner in owners)


def test_the_pre_release_that_is_asked_for_is_of_one_extra_only():
    lines = [line for line in requires(PROJECT) or () if Requirement(line).name in CHOSEN_BETA]
    assert [str(Requirement(line).marker) for line in lines] in (['extra == "prometheus"'], ["extra == 'prometheus'"])
