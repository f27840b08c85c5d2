"""Row-level security that hides rows from a worker's role: PostgreSQL refuses, nothing is taken for gone."""

import os
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from django_events import Draft, declarations, publish_many
from django_events.exceptions import NotReady
from django_events.log import setbacks
from django_events.log.inventory import waiting
from django_events.log.transfer import Transfer
from django_events.maintaining.steps import StepFailed, apply_retention
from django_events.models import BufferedEvent, DeadLetter, Delivery, Event, Topic
from django_events.observing.doctoring.examining import examine
from django_events.observing.findings import Finding
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.verifying.proving import verify
from django_events.operations import erase, rewind, skip
from django_events.reading.dsn import Dsn
from django_events.reading.topics import TopicChoice, find
from django_events.statements import log_table
from testproject.shop.models import Product
from tests.support.fix_consumers import run_once, working
from tests.support.fix_topics import log_values, transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

ROLE = f"secured_worker_{os.getpid()}"
REFUSED = "query would be affected by row-level security policy for table"
POLICIES = {
    "all": "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
    "half": "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; CREATE POLICY half ON {table} USING ({column} % 2 = 1)",
}
OFF = "DROP POLICY IF EXISTS half ON {table}; ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"
KINDS = {
    "a stream": {},
    "a stream of each partition": {"partitions": 2},
    "a stream with a filter": {"where": "$ >= 0"},
    "batches": {"batch_size": 10},
    "a queue": {"mode": "queue"},
    "a queue in order": {"mode": "queue", "ordered": True},
    "a queue that is filled": {"mode": "queue", "max_pending": 1},
}


def run(text: str) -> None:
    """As the owner, whom the session is from then on."""
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE NONE")
        cursor.execute(text)


def become_worker() -> None:
    """A new session is one of the worker's role."""
    connection.close()


@pytest.fixture
def as_worker() -> Iterator[None]:
    """Sessions that begin from now on have a role that is no superuser."""
    run(f"CREATE ROLE {ROLE}")
    for kind in ("TABLES", "SEQUENCES"):
        run(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {ROLE}")
    run(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {ROLE}")
    name = connection.settings_dict["NAME"]
    run(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET role = {ROLE}')
    yield
    run(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" RESET role')
    run(f"DROP OWNED BY {ROLE}")
    run(f"DROP ROLE {ROLE}")
    connection.close()


@pytest.fixture
def log(make_topic) -> str:
    make_topic("broken", partitions=1)
    make_topic("free")
    return log_of("broken")


def log_of(topic: str) -> str:
    return log_table(Topic.objects.get(name=topic).pk)


def publish_to(*topics: str, values: tuple[int, ...]) -> None:
    for topic in topics:
        publish_many(topic, [Draft(value=n, key=str(n)) for n in values])
    transfer_all()


def told() -> list[Finding]:
    found = find_problems("default", waiting("default"), None, standings("default"))
    return [one for one in found if one.kind == "set aside"]


@pytest.mark.slow
@pytest.mark.requirement("E6")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.few(4)
def test_a_worker_refuses_a_log_of_which_it_would_not_see_all(
    make_topic, make_consumer, as_worker, monkeypatch, policy, options
):
    """Before, it took what it didn't see for gone: passed over by a stream, deleted of a queue."""
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    options = {**options}
    make_topic("broken", partitions=options.pop("partitions", 1))
    make_topic("free")
    got: dict[str, list[object]] = {"broken": [], "free": []}

    def handle(given):
        for event in given if isinstance(given, list) else [given]:
            got[event.topic].append(event.value)

    unlucky = make_consumer("broken", handler=handle, name="unlucky", **options)
    lucky = make_consumer("free", handler=handle, name="lucky", **options)
    table = log_of("broken")
    with working(unlucky, lucky) as pool:
        publish_to("free", "broken", values=(1,))
        wait_until(lambda: got == {"broken": [1], "free": [1]})
        with transaction.atomic():
            for topic in ("broken", "free"):
                publish_many(topic, [Draft(value=n, key=str(n)) for n in range(2, 8)])
            run(POLICIES[policy].format(table=table, column="id"))
        transfer_all()
        wait_until(lambda: pool._errors or (sorted(got["free"]) == [*range(1, 8)] and told()))
        assert not pool._errors
        [problem] = told()
        assert (problem.subject.consumer, problem.subject.topic) == ("unlucky", "broken")
        assert f'{REFUSED} "{table}"' in problem.what
        assert problem.remedy.startswith("Let its role see all rows: ALTER TABLE … DISABLE ROW LEVEL SECURITY")
        assert got["broken"] == [1]

        run(OFF.format(table=table))
        wait_until(lambda: sorted(got["broken"]) == [*range(1, 8)])
        wait_until(lambda: not told())
    assert len(got["broken"]) == 7, "each once"
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@pytest.mark.requirement("E6")
def test_a_queue_whose_deliveries_would_be_hidden_is_set_aside(make_consumer, log, as_worker, monkeypatch):
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    got: list[object] = []
    reader = make_consumer("broken", handler=lambda event: got.append(event.value), name="unlucky", mode="queue")
    publish_to("broken", values=(1, 2, 3))
    run_once(reader)
    publish_to("broken", values=(4, 5, 6))
    run(POLICIES["half"].format(table="django_events_delivery", column="event_id"))
    try:
        with working(reader):
            wait_until(told)
            assert got == [1, 2, 3]
            run(OFF.format(table="django_events_delivery"))
            wait_until(lambda: got == [*range(1, 7)])
            wait_until(lambda: not told())
    finally:
        run(OFF.format(table="django_events_delivery"))
    assert not Delivery.objects.exists()


@pytest.mark.requirement("E6")
def test_an_event_that_is_hidden_is_not_skipped_as_missing(make_consumer, log, as_worker):
    """Before, its delivery was deleted without a dead letter."""
    make_consumer("broken", handler=print, name="unlucky", mode="queue", start="beginning")
    publish_to("broken", values=(1,))
    run(POLICIES["all"].format(table=log))
    become_worker()
    with pytest.raises(DatabaseError, match=REFUSED):
        skip("unlucky", 1, reason="a test")
    run(OFF.format(table=log))
    assert Delivery.objects.filter(event_id=1).exists()


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("table", ["django_events_position", "django_events_consumer", "django_events_bufferedevent"])
def test_what_all_share_stops_the_process_with_the_reason(make_consumer, log, as_worker, table):
    make_consumer("broken", handler=print, name="unlucky")
    publish_many("broken", [Draft(value=1)])
    column = "topic_id" if table.endswith("bufferedevent") else "id"
    if table != "django_events_bufferedevent":
        transfer_all()
    run(POLICIES["half"].format(table=table, column=column))
    become_worker()
    command = ["run_transfer"] if table.endswith("bufferedevent") else ["run_consumer", "unlucky"]
    try:
        with pytest.raises(CommandError, match=r"row-level security|is not registered") as raised:
            call_command(*command, "--once")
        if table != "django_events_consumer":
            assert "The role" in str(raised.value)
            assert "ALTER ROLE" in str(raised.value)
            assert "BYPASSRLS" in str(raised.value)
    finally:
        run(OFF.format(table=table))
    assert BufferedEvent.objects.count() + Event.objects.of("broken").count() == 1


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("policy", POLICIES)
def test_the_transfer_refuses_a_log_whose_end_it_would_not_see(log, as_worker, policy, in_thread, monkeypatch):
    publish_to("broken", "free", values=(1, 2))
    run(POLICIES[policy].format(table=log, column="id"))
    for topic in ("broken", "free"):
        publish_many(topic, [Draft(value=3)])

    def move() -> list[str]:
        worker = Transfer("default")
        worker.move()
        return [f"{one.name}: {one.said}" for one in worker.setbacks]

    assert in_thread(move).result() == [f'broken: {REFUSED} "{log}"']
    assert log_values(declarations.registry.get("free")) == [1, 2, 3]
    assert BufferedEvent.objects.count() == 1
    run(OFF.format(table=log))
    assert in_thread(move).result() == []
    assert log_values(declarations.registry.get("broken")) == [1, 2, 3]


@pytest.fixture
def hidden(make_consumer, log, as_worker) -> Iterator[str]:
    """A log with events that the session, which is a worker's, doesn't see all of."""
    make_consumer("broken", handler=print, name="unlucky")
    publish_to("broken", values=tuple(range(10)))
    run(POLICIES["half"].format(table=log, column="id"))
    become_worker()
    yield log
    run(OFF.format(table=log))


@pytest.mark.requirement("E6")
@pytest.mark.parametrize(
    "work",
    [
        lambda: verify("default"),
        lambda: erase("broken", key="3", reason="a test", dry_run=True),
        lambda: rewind("unlucky", to=3),
    ],
    ids=["verify", "erase", "rewind"],
)
def test_what_is_concluded_from_a_log_is_refused(hidden, work):
    with pytest.raises(DatabaseError, match=REFUSED):
        work()


def test_in_a_transaction_too_and_what_comes_behind_is_as_before(hidden):
    with transaction.atomic():
        with pytest.raises(DatabaseError, match=REFUSED):
            rewind("unlucky", to=3)
        with connection.cursor() as cursor:
            cursor.execute("SHOW row_security")
            assert cursor.fetchone() == ("on",)


def test_retention_drops_nothing_that_it_would_not_see_all_of(make_topic, make_consumer, as_worker):
    topic = make_topic("short", retention_events=100, segment_size=100)
    make_consumer("short", handler=print, name="slow")
    publish_many(topic, [Draft(value=n) for n in range(350)])
    transfer_all()
    table = "django_events_position"  # who needs it is not seen
    run(POLICIES["all"].format(table=table))
    become_worker()
    try:
        with pytest.raises((StepFailed, DatabaseError), match=REFUSED):
            apply_retention("default", lambda: False)
    finally:
        run(OFF.format(table=table))
    assert Event.objects.of("short").count() == 350


def test_a_reader_in_spark_is_refused_before_it_finds_the_ends(hidden):
    known = connection.get_connection_params().items()
    dsn = Dsn(" ".join(f"{name}='{value}'" for name, value in known if value and isinstance(value, str | int)))
    with pytest.raises(NotReady, match="would not see all rows"), dsn.connected() as session:
        find(session, TopicChoice(names=("broken",), pattern=None))


def test_a_handler_keeps_the_policies_of_the_site_s_own_tables(shelf, make_consumer, log, as_worker):
    """They are not ours to switch off, or on: its queries are filtered as those of a page are."""
    Product.objects.create(sku="hidden", price=1, on_shelf=1)
    run("ALTER TABLE shop_product ENABLE ROW LEVEL SECURITY")
    run("CREATE POLICY seen ON shop_product USING (sku <> 'hidden')")
    seen: list[list[str]] = []

    def handle(event):
        seen.append(list(Product.objects.order_by("sku").values_list("sku", flat=True)))

    options = [{}, {"transactional": False}, {"mode": "queue"}, {"mode": "queue", "transactional": False}]
    readers = [make_consumer("broken", handler=handle, name=f"r{n}", **one) for n, one in enumerate(options)]
    try:
        publish_to("broken", values=(1,))
        with working(*readers):
            wait_until(lambda: len(seen) == len(readers))
    finally:
        run("DROP POLICY seen ON shop_product")
        run("ALTER TABLE shop_product DISABLE ROW LEVEL SECURITY")
    assert seen == [["tea"]] * len(readers)


@pytest.mark.slow
@pytest.mark.requirement("E6")
def test_the_doctor_names_the_tables_and_the_remedy(log, as_worker):
    run(POLICIES["all"].format(table=log))
    [seen] = [one for one in examine("default") if one.kind == "tables"]
    assert seen.severity == "warning"
    assert seen.what.startswith(f"{log} has row-level security. This role sees all its rows")
    become_worker()
    found = [one for one in examine("default") if one.kind == "tables"]
    assert [(one.severity, one.what) for one in found] == [
        ("error", f"{log} has row-level security that hides rows from this role, so its workers refuse to read it.")
    ]
    assert found[0].remedy.startswith(f"ALTER TABLE {log} DISABLE ROW LEVEL SECURITY")
    run(OFF.format(table=log))
