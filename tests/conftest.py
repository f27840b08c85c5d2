"""What all tests share: the fixtures of `tests/support`, and the database that tests commit to."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# How long an example takes, or making it, says something of the machine.
hypothesis.settings.register_profile(
    "django_events", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("django_events")

# Their asserts say what they compared.
pytest.register_assert_rewrite("tests.spark.rivals", "tests.support.processes", "tests.support.proxies")

pytest_plugins = [  # each before those that import it
    "django_events.pytest_plugin",
    "tests.support.fix_topics",
    "tests.support.fix_database",
    "tests.support.fix_consumers",
    "tests.support.fix_rollups",
    "tests.support.fix_servers",
    "tests.support.fix_processes",
    "tests.support.fix_second_database",
    "tests.support.fix_queues",
    "tests.support.fix_restores",
    "tests.support.fix_catalogues",
    "tests.support.fix_sites",
    "tests.support.fix_webhooks",
    "tests.support.fix_brokers",
    "tests.support.fix_relays",
    "tests.support.fix_inboxes",
    "tests.support.fix_mirrors",
]

# A Spark session of a few seconds spends most of them in Java's compiler: the quick compiler alone takes half the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Most tests in these folders start processes, servers or Spark: they are long unless they are marked otherwise.
LONG_UNLESS_MARKED = {"acceptance", "faults", "pages", "spark"}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        marked = any(item.get_closest_marker(name) is not None for name in ("quick", "slow"))
        if folder in LONG_UNLESS_MARKED and not marked:
            item.add_marker(pytest.mark.long)
    leave_few(items)
    yield  # `-m` chooses, and pytest-django sorts
    # Processes take tests of each other from the end of what is left. Each that got one of these would start a Spark.
    items.sort(key=lambda item: "spark" not in item.path.relative_to(Path(__file__).parent).parts)


def leave_few(items: list[pytest.Item]) -> None:
    """Make long what `few` has too many of. Which are left is drawn by the test's name: each test has others."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None:
            by_test.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, same in by_test.items():
        marker = same[0].get_closest_marker("few")
        assert marker is not None
        left = random.Random(name).sample(same, min(marker.args[0], len(same)))
        for item in same:
            if item not in left:
                item.add_marker(pytest.mark.long)
