"""How many statements a look asks on a site with many topics: `events status`, `events doctor` and `events verify`."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_events import declarations, publish
from django_events.log import inventory
from django_events.management.events.looking.doctor import doctor
from django_events.management.events.looking.status import status
from django_events.observing import lag
from django_events.observing.verifying.proving import verify
from django_events.syncing import sync
from tests.support.fix_topics import drop_topics, transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S13")]

FEW, MANY, AT_ONCE = 5, 50, 20
LOG = re.compile(r'"(django_events_event_\d+)"')

MakeMany = Callable[[int], None]


@pytest.fixture
def make_many() -> Iterator[MakeMany]:
    """Have so many topics in all, with an event each."""
    made: list[declarations.DeclaredTopic] = []

    def make(number: int) -> None:
        new = [declarations.topic(f"many-{i}", partitions=1 + i % 2) for i in range(len(made), number)]
        made.extend(new)
        sync("default")
        with transaction.atomic():
            for topic in new:
                publish(topic, {"n": 1}, key="k")
        transfer_all()

    yield make
    for topic in made:
        declarations.registry.discard(topic)
    drop_topics([topic.name for topic in made])


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements about some topics, so that fifty need several of them."""
    for module in (inventory, lag):
        monkeypatch.setattr(module, "TOPICS_AT_ONCE", AT_ONCE)


def asked(look: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        look()
    return [query["sql"] for query in captured.captured_queries]


def look_at_status() -> None:
    status("default", names=[], format="text")


def look_at_all() -> None:
    doctor("default")


def prove() -> None:
    assert not verify("default").offenders


@pytest.mark.slow
def test_status_and_doctor_ask_about_many_topics_at_once(make_many: MakeMany) -> None:
    make_many(FEW)
    of_few = {look: len(asked(look)) for look in (look_at_status, look_at_all)}
    make_many(MANY)

    # The topics of the tests' own apps make it one part more of each list.
    for look, statements in of_few.items():
        assert len(asked(look)) <= statements + 8, look


@pytest.mark.slow
@pytest.mark.usefixtures("few_at_once")
def test_no_statement_locks_the_logs_of_more_topics_than_it_may(make_many: MakeMany) -> None:
    make_many(MANY)

    for look in (look_at_status, look_at_all):
        logs = [set(LOG.findall(statement)) for statement in asked(look)]
        assert max(map(len, logs)) == AT_ONCE, look
        assert len(set().union(*logs)) >= MANY, look


@pytest.mark.slow
def test_a_topic_without_consumers_is_proved_by_its_log_and_the_buffer_alone(make_many: MakeMany) -> None:
    make_many(FEW)
    of_few = asked(prove)
    make_many(MANY)
    of_many = asked(prove)

    # One snapshot with a lock on the log, and one walk: what consumers have of its events is eleven statements more.
    assert len(of_many) - len(of_few) <= 18 * (MANY - FEW)
