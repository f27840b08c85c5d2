"""What all tests share: the fixtures of `tests/support`, and the database that tests commit to."""

import os

pytest_plugins = [  # each before those that import it
    "django_events.pytest_plugin",
    "tests.support.fix_database",
    "tests.support.fix_topics",
    "tests.support.fix_consumers",
    "tests.support.fix_servers",
    "tests.support.fix_processes",
    "tests.support.fix_queues",
    "tests.support.fix_restores",
    "tests.support.fix_sites",
]

# A Spark session of a few seconds spends most of them in Java's compiler: the quick compiler alone takes half the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
