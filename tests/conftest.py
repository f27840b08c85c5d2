"""What all tests share: the fixtures of `tests/support`, and the database that tests commit to."""

import os
from pathlib import Path

import pytest

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
    "tests.support.fix_sites",
    "tests.support.fix_webhooks",
]

# A Spark session of a few seconds spends most of them in Java's compiler: the quick compiler alone takes half the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Most tests in these folders start processes, servers or Spark: those that run by the README's command are marked.
LONG_UNLESS_QUICK = {"acceptance", "faults", "pages", "spark"}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        is_long = folder in LONG_UNLESS_QUICK and item.get_closest_marker("quick") is None
        if is_long or item.get_closest_marker("exhaustive") is not None:
            item.add_marker(pytest.mark.long)
