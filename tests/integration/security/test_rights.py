"""Each process has the rights it needs, and no more: seen by connecting as each role and doing what it is for."""

import io
import json
import re
import uuid
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, ProgrammingError, connection, connections, transaction
from django.test import RequestFactory, override_settings
from django.utils import timezone
from psycopg import sql as compose

from django_events import (
    Backoff,
    BufferedWriter,
    Draft,
    cancel,
    declarations,
    health,
    log_source,
    models,
    publish,
    publish_many,
    shard_of,
)
from django_events import sql as statements
from django_events.bridges.inboxes.serving import worker_of
from django_events.exceptions import NotReady
from django_events.log.compaction import compact
from django_events.management.events import grants as command
from django_events.metrics.views import metrics
from django_events.models import Event
from django_events.observing.doctoring.examining import examine
from django_events.operating import resharding
from django_events.operations import erase, publish_again, unregister
from django_events.spark.sink import SQL as SINK_SQL
from django_events.workers.loop import run as run_worker
from django_events.workers.stopping import Stop
from testproject.shop.models import Product
from tests.support.fix_database import login
from tests.support.fix_queues import fill_topic
from tests.support.fix_rollups import row_of, table_of
from tests.support.fix_topics import transfer_all, wait_for_older_transactions

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

KINDS = ("publisher", "consumer", "claimer", "operator", "reader", "sink", "mirror")
PASSWORD = "for-a-test"
ONCE = Backoff(attempts=1)


def run(*lines):
    with connection.cursor() as cursor:
        for line in lines:
            cursor.execute(line)


@pytest.fixture
def roles():
    """A login for each kind of process, with what `events grants` prints; the logs are the test's again afterwards."""
    unique = uuid.uuid4().hex[:8]
    names = {kind: f'Test {kind} "{unique}' for kind in KINDS}
    logins = {kind: f"login {kind} {unique}" for kind in KINDS}
    aliases = {}
    try:
        for kind in KINDS:
            printed(kind, names[kind])
            run(
                compose.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                    compose.Identifier(logins[kind]), compose.Literal(PASSWORD)
                ),
                compose.SQL("GRANT {} TO {}").format(compose.Identifier(names[kind]), compose.Identifier(logins[kind])),
            )
            aliases[kind] = f"as_{kind}"
            connections.settings[aliases[kind]] = login(USER=logins[kind], PASSWORD=PASSWORD)
        yield aliases
    finally:
        for alias in aliases.values():
            connections[alias].close()
            del connections[alias]
            del connections.settings[alias]
        for name in [*names.values(), *logins.values()]:
            drop(name)


def name_of(kind, roles):
    """The role that a login of the test has: other databases of the server may be tested at the same time."""
    unique = connections.settings[roles[kind]]["USER"].split()[-1]
    return f'Test {kind} "{unique}'


def drop(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [name])
        if cursor.fetchall():
            for line in ("REASSIGN OWNED BY {} TO CURRENT_USER", "DROP OWNED BY {}", "DROP ROLE {}"):
                cursor.execute(compose.SQL(line).format(compose.Identifier(name)))


def printed(kind, name, **options):
    """Run what is printed, as psql would."""
    text = command.grants("default", role=kind, to=name, **options).text
    connection.ensure_connection()
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(text)


def called(*arguments, using, **options):
    out = io.StringIO()
    call_command(*arguments, database=using, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def assert_refused(alias, *statements):
    """Each statement fails because of the rights on the first table that it names."""
    for text in statements:
        table = re.search(r"(?:FROM|INTO|UPDATE) (\w+)", text)[1]
        with pytest.raises(ProgrammingError, match=f"permission denied for .*{table}"):
            execute(alias, text)


def execute(alias, text):
    with transaction.atomic(alias), connections[alias].cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else None


def lock_held_by(alias):
    """The token of a lease whose holder froze in a session of a role."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
    return 4711


@pytest.mark.slow
def test_publishers_publish_and_read_nothing(make_topic, roles):
    topic, alias = make_topic("things"), roles["publisher"]
    run("GRANT SELECT, INSERT, UPDATE ON shop_product TO PUBLIC; GRANT USAGE ON SEQUENCE shop_product_id_seq TO PUBLIC")
    try:
        publish(topic, 1, key="a", using=alias)
        publish_many(topic, [Draft(value=n) for n in (2, 3)], using=alias)
        publish(topic, 4, dedup_key="four", using=alias)
        assert not publish(topic, 4, dedup_key="four", using=alias).new
        publish_many(topic, [Draft(value=5, dedup_key="five")], using=alias)
        later = publish(topic, 6, publish_at=timezone.now() + timedelta(days=1), using=alias)
        publish_many(topic, [Draft(value=7, publish_at=timezone.now())], using=alias)
        assert cancel(topic, later.ticket, using=alias)
        with BufferedWriter(topic, using=alias) as writer:
            for n in range(8, 11):
                writer.publish(n)
        with transaction.atomic(alias):
            product = Product.objects.using(alias).create(sku="cup", price=1, on_shelf=1)
            product.on_shelf = 2
            product.save(using=alias)
    finally:
        run("REVOKE ALL ON shop_product FROM PUBLIC; REVOKE ALL ON SEQUENCE shop_product_id_seq FROM PUBLIC")
    transfer_all()
    assert sorted(Event.objects.of(topic).values_list("value", flat=True)) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert Event.objects.of("stock").get().value["sku"] == "cup"

    assert_refused(
        alias,
        "SELECT FROM django_events_event",
        "SELECT value FROM django_events_bufferedevent",
        "DELETE FROM django_events_bufferedevent",
        "SELECT value FROM django_events_scheduledevent",
        "SELECT key FROM django_events_stagedevent",
        "DELETE FROM django_events_stagedevent",
        "UPDATE django_events_dedupkey SET key = 'another'",
        "UPDATE django_events_topic SET partitions = 7",
        "SELECT FROM django_events_consumer",
    )
    with pytest.raises(CommandError, match="may not do this"):
        called("run_transfer", using=alias, once=True)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("bufferedevent", "id"),
        ("bufferedevent", "published_at"),
        ("scheduledevent", "id"),
        ("scheduledevent", "scheduled_at"),
    ],
)
def test_publishers_choose_neither_ids_nor_times(make_topic, roles, table, column):
    """The transfer goes by the ids of the buffer: one that is far ahead would hold up the events after it."""
    topic_id = models.Topic.objects.get(name=make_topic("things").name).pk
    value = {"id": str(2**63 - 1)}.get(column, "now()")
    more, later = (", publish_at", ", now()") if table == "scheduledevent" else ("", "")
    assert_refused(
        roles["publisher"],
        f"INSERT INTO django_events_{table} (topic_id, value, {column}{more}) "
        f"OVERRIDING SYSTEM VALUE VALUES ({topic_id}, '1', {value}{later})",
    )


@pytest.mark.parametrize("kind", ["publisher", "consumer", "claimer", "reader", "sink", "mirror"])
def test_only_operators_make_segments_and_replace_them(make_topic, roles, kind):
    topic_id = models.Topic.objects.get(name=make_topic("things", compact=True).name).pk
    for function in (
        f"make_segment({topic_id}, 5000001, 5000002)",
        f"cut_segment({topic_id}, 1, 2)",
        f"drop_segment({topic_id}, 1)",
        f"rewrite_segments({topic_id}, 1, 1000001)",
        f"analyze_rewritten({topic_id}, 1)",
        f"swap_segments({topic_id}, 1, 1000001)",
    ):
        with pytest.raises(ProgrammingError, match=f"permission denied for function django_events_{function[:5]}"):
            execute(roles[kind], f"SELECT django_events_{function}")


@pytest.mark.requirement("X22")
def test_a_mirror_is_read_by_its_role_and_written_by_an_operator(make_topic, make_inbox, roles):
    there, here = make_topic("things"), make_topic("mirrored")
    fill_topic(there, 1, 2, 3)
    known = connections.settings[roles["mirror"]]
    names = {"host": "HOST", "port": "PORT", "dbname": "NAME", "user": "USER", "password": "PASSWORD"}
    options = {name: known[setting] for name, setting in names.items() if known[setting]}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": options}}):
        inbox = make_inbox(here, source=log_source("things", broker="shop"), keep_ids=True)
        with closing(Stop()) as stop, closing(worker_of(roles["operator"], inbox, once=True)) as worker:
            assert run_worker(worker, stop, once=True) == 3
    assert_refused(
        roles["mirror"],
        "SELECT FROM django_events_consumer",
        "SELECT FROM django_events_bufferedevent",
        "SELECT FROM django_events_webhooksecret",
        "UPDATE django_events_topichead SET id_floor = 0",
        "DELETE FROM django_events_event",
    )


@pytest.mark.requirement("S14")
def test_operators_compact(make_topic, roles):
    topic = make_topic("things", segment_size=100, compact=True)
    publish_many(topic, [Draft(value=n, key=str(n % 7)) for n in range(250)])
    transfer_all()
    wait_for_older_transactions()
    done = compact(roles["operator"], models.Topic.objects.get(name="things"))
    assert (done.segments, done.events) == (2, 193)
    publish_many(topic, [Draft(value=n, key=str(n % 7)) for n in range(10)])
    transfer_all()
    assert Event.objects.latest(topic).count() == 7


@pytest.mark.requirement("S2")
@pytest.mark.requirement("E11")
def test_publishers_publish_by_the_map_of_shards_and_only_operators_change_it(make_topic, roles):
    topic, alias = make_topic("things"), roles["publisher"]
    models.ShardMap.objects.create(name="default", version=1, shards=["default"])
    publish(topic, 1, shard_by="a", using=alias)
    publish_many(topic, [Draft(value=2, shard_by="b")], using=alias)
    assert shard_of("a", using=alias) == "default"
    assert_refused(alias, "UPDATE django_events_shardmap SET version = 2", "DELETE FROM django_events_shardmap")
    assert_refused(alias, "SELECT FROM django_events_shardmove")
    with pytest.raises(IntegrityError):
        execute(alias, "UPDATE django_events_shardmap SET id = 2")
    with transaction.atomic(alias), pytest.raises(ProgrammingError, match="permission denied"):
        statements.run(alias, resharding.SQL.lock_maps)
    with transaction.atomic(roles["operator"]):
        statements.run(roles["operator"], resharding.SQL.lock_maps)
        models.ShardMap.objects.using(roles["operator"]).update(version=2)


def test_claimers_work_on_queues_and_reach_no_table(make_topic, make_queue, roles):
    """With what a program has that is not written in Python: four functions."""
    topic, alias = make_topic("things"), roles["claimer"]
    make_queue(topic, retry=ONCE)
    fill_topic(topic, *"abc")
    [[token, value], *more] = execute(alias, "SELECT token, value::text FROM django_events_claim('queue', 3)")
    assert (value, len(more)) == ('"a"', 2)
    assert execute(alias, f"SELECT django_events_ack({token}, '{{1}}')") == [([1],)]
    assert execute(alias, f"SELECT django_events_nack({token}, '{{2}}', error => 'bad')") == [([2],)]
    assert execute(alias, f"SELECT django_events_extend({token}, '1 hour')") == [([3],)]
    assert models.DeadLetter.objects.get().error == "Reported: bad"

    assert_refused(
        alias,
        "SELECT FROM django_events_event",
        "SELECT FROM django_events_consumer",
        "SELECT FROM django_events_delivery",
        "DELETE FROM django_events_delivery",
        "SELECT FROM django_events_deliverylease",
        "UPDATE django_events_deliverylease SET leased_until = now()",
        "SELECT FROM django_events_deadletter",
        "UPDATE django_events_position SET position = 9",
        "INSERT INTO django_events_bufferedevent (topic_id, value) VALUES (1, '1')",
    )
    inner = "django_events_claim_of('django_events_event', 'queue', 1, NULL, NULL, NULL, NULL, NULL, 1)"
    with pytest.raises(ProgrammingError, match="permission denied for table django_events_consumer"):
        execute(alias, f"SELECT {inner}")
    for kind in ("publisher", "consumer", "operator", "reader", "sink", "mirror"):
        with pytest.raises(ProgrammingError, match="permission denied for function django_events_claim"):
            execute(roles[kind], "SELECT django_events_claim('queue')")


def test_sinks_stage_and_publish_and_read_no_other_event(make_topic, roles):
    """The statements of spark/sink.py, which has no connection of Django's."""
    topic, alias, attempts = make_topic("things"), roles["sink"], [uuid.uuid4(), uuid.uuid4()]
    [topic_id] = [row[1] for row in statements.fetch(alias, statements.shared.topics) if row[0] == "things"]
    connections[alias].ensure_connection()
    with (
        connections[alias].connection.cursor() as cursor,
        cursor.copy(SINK_SQL.stage.text.encode()) as copying,
    ):
        for attempt in attempts:
            copying.write_row((str(attempt), topic_id, None, "", "a", "1", None, "{}"))
    with transaction.atomic(alias):
        statements.fetch(alias, SINK_SQL.lock_attempts, attempts=attempts)
        statements.fetch(alias, SINK_SQL.lock_sink, sink="a sink", query="")
        statements.fetch(alias, statements.shared.open, topic="things", wake=None)
        published = statements.fetch(alias, SINK_SQL.publish_staged, attempts=attempts[:1])
        statements.fetch(alias, SINK_SQL.note_batch, sink="a sink", batch=1, events=1, run="")
    assert published == [(1,)]
    assert statements.fetch(alias, SINK_SQL.unstage, attempts=attempts[1:]) == [(1,)]
    transfer_all()
    assert Event.objects.of(topic).count() == 1
    models.SinkBatch.objects.all().delete()

    assert_refused(
        alias,
        "SELECT value FROM django_events_event",
        "SELECT value FROM django_events_bufferedevent",
        "SELECT value FROM django_events_scheduledevent",
        "SELECT value FROM django_events_deadletter",
        "INSERT INTO django_events_bufferedevent (topic_id, published_at) VALUES (1, now())",
    )


def test_probes_of_publishers_see_whether_the_transfer_goes(make_topic, roles, rf):
    alias = roles["publisher"]
    assert health.readiness(rf.get("/"), using=alias, max_age=timedelta(minutes=1)).status_code == 200
    publish(make_topic("things"), 1, using=alias)
    assert health.problem(alias, max_age=timedelta(minutes=1)) is None
    assert called("events", "health", using=alias).startswith("ok: 1 event in the buffer, the oldest for ")
    assert health.problem(alias, max_age=timedelta(0)).kind == "transfer"
    models.BufferedEvent.objects.all().delete()


def test_a_probe_that_may_not_look_says_so(roles, rf):
    name = name_of("publisher", roles)
    run(compose.SQL("REVOKE SELECT ON django_events_topic FROM {}").format(compose.Identifier(name)))
    response = health.readiness(rf.get("/"), using=roles["publisher"])
    assert json.loads(response.content) == {"status": "unavailable", "reason": "rights"}
    told = health.problem(roles["publisher"]).what
    assert "permission denied for table django_events_topic. What it needs: manage.py events grants --role pub" in told


def test_who_may_not_publish_is_told_so_in_a_line(make_topic, roles):
    topic = make_topic("things")
    with pytest.raises(NotReady, match=r"login consumer .* may not .*events grants --role publisher") as caught:
        publish(topic, {"name": "planted"}, using=roles["consumer"])
    assert "\n" not in str(caught.value)
    assert "planted" not in str(caught.value)
    with pytest.raises(CommandError, match=r"login reader .* may not .*permission denied.*events grants --role"):
        called("events", "publish", "things", "1", using=roles["reader"])


def test_the_metrics_page_of_a_site_that_only_publishes_reads_by_another_login(roles, settings, caplog):
    settings.DEBUG = True  # the page is for everybody
    page = {kind: metrics(RequestFactory().get("/metrics"), using=roles[kind]) for kind in ("publisher", "reader")}

    assert [line for line in page["publisher"].content.decode().splitlines() if line[0] != "#"] == [
        'django_events_up{database="as_publisher"} 0.0'
    ]
    [said] = [record.getMessage() for record in caplog.records if record.name == "django_events.metrics"]
    assert "The state of the database 'as_publisher' can't be read. The role 'login publisher" in said
    assert "permission denied" in said
    assert said.endswith("manage.py events grants --role reader")
    assert 'django_events_up{database="as_reader"} 1.0' in page["reader"].content.decode()
    assert "as_publisher" not in page["reader"].content.decode()


@pytest.fixture
def handled():
    return []


@pytest.fixture
def readers(make_topic, make_consumer, make_queue, handled):
    """A stream, and queues in and out of order, one of which fails."""
    topic = make_topic("things", partitions=2, segment_size=100)

    def fails(event):
        raise ValueError("no")

    make_consumer(topic, name="stream", handler=lambda event: handled.append(("stream", event.id)))
    make_consumer(topic, name="dying", handler=fails, retry=ONCE, types=["bad"])
    make_queue(
        topic, name="queue", handler=lambda event: handled.append(("queue", event.id)), history=timedelta(days=1)
    )
    make_queue(topic, name="ordered", ordered=True, handler=lambda event: handled.append(("ordered", event.id)))
    make_queue(topic, name="failing", handler=fails, retry=ONCE, types=["bad"])
    make_queue(topic, name="late", live=False, handler=lambda event: handled.append(("late", event.id)))
    fill_topic(topic, *range(4), key="a", type="bad")
    return topic


NAMES = ("stream", "dying", "queue", "ordered", "failing", "late")


@pytest.mark.slow
def test_consumers_handle_events_and_do_nothing_else(readers, roles, handled):
    alias = roles["consumer"]
    called("run_consumer", *NAMES, using=alias, once=True)
    fill_topic(readers, *range(4), key="b", type="bad")
    called("run_consumer", *NAMES, using=alias, once=True, threads=2)

    for name in ("stream", "queue", "ordered", "late"):
        assert sorted(event_id for who, event_id in handled if who == name) == list(range(1, 9))
    assert models.DeadLetter.objects.filter(consumer__name__in=["dying", "failing"]).count() == 16
    models.DeadLetter.objects.update(redrive_at=timezone.now(), attempts=0)
    called("run_consumer", *NAMES, using=alias, once=True)
    fill_topic(readers, *range(4), key="c", type="good")
    readers.repartition(5)
    fill_topic(readers, *range(4), key="c", type="good")
    called("run_consumer", *NAMES, using=alias, once=True)
    assert models.Position.objects.filter(consumer__name="stream", layout=1).count() == 5

    assert_refused(
        alias,
        "INSERT INTO django_events_event SELECT * FROM django_events_event",
        "DELETE FROM django_events_event",
        "UPDATE django_events_event SET value = '1'",
        "UPDATE django_events_topichead SET id_floor = 7",
        "UPDATE django_events_consumer SET paused_at = NULL",
        "UPDATE django_events_consumer SET types = NULL",
        "DELETE FROM django_events_intervention",
        "SELECT FROM auth_user",
    )
    with pytest.raises(CommandError, match="may not do this"):
        called("events", "pause", "stream", using=alias)
    with pytest.raises(CommandError, match="may not do this"):
        called("events", "publish", "things", "1", using=alias)


@pytest.mark.slow
def test_operators_move_events_and_repair(readers, roles, handled, make_topic):
    alias = roles["operator"]
    publish_many(readers, [Draft(value=n, key="c") for n in range(230)], using=alias)
    publish(readers, 1, publish_at=timezone.now(), using=alias)
    called("run_transfer", using=alias, once=True)
    assert Event.objects.of(readers).count() == 235
    called("events", "skip", "queue", "5", "--reason", "a test", "--execute", using=alias)
    called("run_consumer", *NAMES, using=roles["consumer"], once=True)
    assert called("events", "peek", "things", using=roles["reader"])

    called("events", "pause", "stream", using=alias)
    called("events", "resume", "stream", using=alias)
    called("events", "redrive", "dying", using=alias, all=True, execute=True)
    called("events", "discard", "dying", using=alias, all=True, reason="a test", execute=True)
    for name in NAMES:
        called("events", "rewind", name, "--to", "3", "--execute", using=alias)
    erase(readers, key="a", reason="a test", using=alias)
    assert Event.objects.at(readers, 1).erased
    called("events", "repartition", "things", "5", "--execute", using=alias)
    whole = make_topic("whole")
    with pytest.raises(CommandError, match=r"only the owner of its log can make it\. Nothing was changed\."):
        called("events", "repartition", whole.name, "5", "--execute", using=alias)
    publish_again(readers, 20, using=alias)
    called("run_transfer", using=alias, once=True)
    called("run_events", using=alias, once=True)
    called("run_consumer", *NAMES, using=roles["consumer"], once=True)

    assert_refused(alias, "SELECT FROM auth_user", "DELETE FROM shop_product")


@pytest.mark.slow
@pytest.mark.requirement("H3")
@pytest.mark.parametrize("made", ["before the rights were given", "afterwards"])
def test_rollups_are_kept_by_consumers_cleaned_by_operators_and_seen_by_readers(request, make_rollup, made):
    topic = request.getfixturevalue("make_topic")("things")

    def make():
        return make_rollup(topic, by={"store": "$.store"}, groups=1, at="$.at", retention=timedelta(days=10))

    counted = make() if made.startswith("before") else None
    roles = request.getfixturevalue("roles")
    counted = counted or make()
    table = table_of(counted)
    values = [{"store": "a", "at": "2026-01-01"}, {"store": "b"}, {"store": "c"}]
    fill_topic(topic, *values)
    called("run_consumer", "revenue", using=roles["consumer"], once=True)
    assert row_of(counted).full_since is not None
    assert counted.up_to(using=roles["reader"])[0].id == 3
    span = timezone.now() - timedelta(days=1_000), timezone.now()
    assert len(counted.between(*span, using=roles["reader"]).by("store")) == 2
    called("events", "maintain", "roll-ups", using=roles["operator"])
    assert len(counted.between(*span).by("store")) == 1

    for kind in ("consumer", "reader"):
        assert_refused(roles[kind], f"DELETE FROM {table}", "DELETE FROM django_events_rollup")
    assert_refused(
        roles["consumer"],
        "UPDATE django_events_rollup SET made_by = NULL",
        "INSERT INTO django_events_rollup SELECT * FROM django_events_rollup",
    )
    assert_refused(roles["reader"], f"UPDATE {table} SET count = 0", f"INSERT INTO {table} SELECT * FROM {table}")
    for kind in ("publisher", "claimer", "sink"):
        assert_refused(roles[kind], f"SELECT FROM {table}", "SELECT FROM django_events_rollup")
    for kind in KINDS:
        run(command.grants("default", role=kind, to=name_of(kind, roles), revoke=True).text)
        assert_refused(roles[kind], f"SELECT FROM {table}")
    declarations.consumers.discard(counted)
    printed("operator", name_of("operator", roles))
    unregister("revenue", using=roles["operator"])
    assert not models.RollUp.objects.filter(name="revenue").exists()


def test_operators_forget_consumers(readers, roles, make_consumer):
    models.Consumer.objects.using("default").create(
        name="gone", topic=models.Topic.objects.get(name="things"), mode="stream"
    )
    unregister("gone", using=roles["operator"])
    assert not models.Consumer.objects.filter(name="gone").exists()


def test_operators_end_who_froze_with_a_lease(readers, roles):
    token = lock_held_by(roles["consumer"])
    found = statements.fetch(roles["operator"], statements.shared.end_holder, token=token)
    assert [ended for _, ended in found] == [True]
    connections[roles["consumer"]].close()


@pytest.mark.slow
def test_new_topics_and_segments_belong_to_the_owner_and_are_read_by_readers(readers, roles, make_topic):
    later = make_topic("later", segment_size=100)
    publish_many(later, [Draft(value=n) for n in range(350)])
    called("run_transfer", using=roles["operator"], once=True)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT relowner::regrole::text, (SELECT count(*) FROM aclexplode(relacl)) FROM pg_class "
            "WHERE oid IN (SELECT relid FROM pg_partition_tree('django_events_event'))"
        )
        owners = cursor.fetchall()
    assert len(owners) == 1
    assert [owners[0][:1]] == execute("default", "SELECT current_user::text")
    for kind in ("reader", "consumer"):
        row = models.Topic.objects.get(name="later")
        assert execute(roles[kind], f"SELECT count(*) FROM django_events_event_{row.pk}") == [(350,)]
        assert execute(roles[kind], f"SELECT count(*) FROM django_events_event_{row.pk}_1") == [(100,)]
    declarations.registry.discard(later)


@pytest.mark.slow
def test_readers_see_everything_and_change_nothing(readers, roles):
    alias = roles["reader"]
    publish(readers, 1, publish_at=timezone.now() + timedelta(days=1))
    for arguments in (
        ("status",),
        ("topics",),
        ("consumers",),
        ("consumers", "stream", "--partitions"),
        ("peek", "things"),
        ("peek", "things", "--at", "1"),
        ("dead-letters",),
        ("interventions",),
        ("scheduled",),
        ("grants", "--role", "reader"),
        ("erase", "things", "--key", "a", "--reason", "a look"),
    ):
        assert called("events", *arguments, using=alias)
    models.ScheduledEvent.objects.all().delete()

    for arguments in (
        ("publish", "things", "1"),
        ("pause", "stream"),
        ("rewind", "stream", "--to", "beginning", "--execute"),
        ("erase", "things", "--key", "a", "--reason", "a try", "--execute"),
    ):
        with pytest.raises(CommandError, match="may not do this"):
            called("events", *arguments, using=alias)
    tables = ("event", "bufferedevent", "position", "deadletter", "intervention")
    assert_refused(alias, *(f"DELETE FROM django_events_{table}" for table in tables), "SELECT FROM auth_user")


def rights_of(role):
    """Every right that a role has by itself on our tables, columns, sequences and functions, and its memberships."""
    [[oid]] = execute(
        "default", compose.SQL("SELECT oid FROM pg_roles WHERE rolname = {}").format(compose.Literal(role))
    )
    return execute(
        "default",
        "SELECT c.relname, acl.privilege_type FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS acl"
        f" WHERE acl.grantee = {oid} AND c.relname LIKE 'django%'"
        " UNION ALL SELECT a.attname, acl.privilege_type FROM pg_attribute AS a CROSS JOIN aclexplode(a.attacl) AS acl"
        f" WHERE acl.grantee = {oid}"
        " UNION ALL SELECT p.proname, acl.privilege_type FROM pg_proc AS p CROSS JOIN aclexplode(p.proacl) AS acl"
        f" WHERE acl.grantee = {oid}"
        f" UNION ALL SELECT roleid::regrole::name, 'member' FROM pg_auth_members WHERE member = {oid}",
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_given_is_taken_back(roles, readers, kind):
    name = name_of(kind, roles)
    assert rights_of(name)
    before = execute("default", "SELECT count(*) FROM django_events_event")
    for _ in range(2):  # it may be run again
        printed("reader", name, revoke=True)

    assert not rights_of(name)
    assert_refused(roles[kind], "SELECT FROM django_events_topic", "SELECT FROM django_events_event")
    assert execute("default", "SELECT count(*) FROM django_events_event") == before
    printed(kind, name)
    if kind == "claimer":  # it reads no table, and may call what it may call
        assert rights_of(name)
        return
    execute(roles[kind], "SELECT FROM django_events_topic")


@pytest.mark.slow
def test_a_right_that_another_role_gave_is_said_and_nothing_is_taken(roles, readers):
    operator, reader = (compose.Identifier(name_of(kind, roles)) for kind in ("operator", "reader"))
    run(
        compose.SQL("GRANT SELECT ON django_events_topic TO {} WITH GRANT OPTION").format(operator),
        compose.SQL("REVOKE SELECT ON django_events_topic FROM {}").format(reader),
    )
    execute(
        roles["operator"],
        compose.SQL("SET LOCAL ROLE {}").format(operator)
        + compose.SQL("; ")
        + compose.SQL("GRANT SELECT ON django_events_topic TO {}").format(reader),
    )
    with pytest.raises(
        psycopg.Error, match=r"Nothing was revoked, .*SELECT on django_events_topic, given by .*operator"
    ):
        printed("reader", name_of("reader", roles), revoke=True)
    connection.close()

    execute(roles["reader"], "SELECT FROM django_events_consumer")


def test_the_owner_of_the_tables_has_nothing_to_be_taken():
    [[owner]] = execute("default", "SELECT tableowner FROM pg_tables WHERE tablename = 'django_events_topic'")
    with pytest.raises(CommandError, match="owns the tables of events"):
        call_command("events", "grants", "--role", "reader", "--to", owner, "--revoke")


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_text_may_be_run_again_and_says_what_it_is_for(roles, kind):
    name = name_of(kind, roles)
    printed(kind, name)
    printed(kind, name)
    data = json.loads(called("events", "grants", "--role", kind, "--to", name, "--format", "json", using="default"))
    assert (data["role"], data["to"]) == (kind, name)
    assert all(block["purpose"] and block["statements"] for block in data["blocks"])
    text = called("events", "grants", "--role", kind, using="default")
    assert text.count("\n-- ") >= len(data["blocks"])
    assert f'"django_events_{kind}"' in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "can"),
    [
        ("publisher", "publish"),
        ("consumer", "read and handle"),
        ("operator", "publish and transfer and read and handle and make segments"),
        ("reader", "read"),
        ("sink", "publish"),
    ],
)
def test_a_role_that_is_as_printed_is_no_problem_of_the_doctor(roles, readers, kind, can):
    found = examine(roles[kind])
    rights = [one for one in found if one.kind == "rights"]
    if kind == "operator":
        assert [one.severity for one in rights] == ["ok"]
    else:
        assert {one.severity for one in rights} == {"warning"}
        assert all(one.remedy.endswith(f": it can {can}.") for one in rights)
    assert [one for one in found if one.severity == "error" and "rights" in one.kind] == []
    assert [one.what for one in found if "ProgrammingError" in one.what] == []


def test_giving_operators_the_log_again_waits_for_no_session_and_stops_none(roles, readers, connect):
    name = name_of("operator", roles)
    printed("operator", name)  # segments that came since
    connect().execute("SELECT count(*) FROM django_events_event")  # and its transaction goes on
    printed("operator", name)


@pytest.mark.parametrize("kind", ["operator", "reader"])
@pytest.mark.parametrize(
    "rest",
    [
        "$block$; CREATE TABLE got_out (); --",
        "$block1$ $block$; --",
        "100%%s",
        "%(a)s",
        "{role}",
        "\"'",
        "e\\'; --",
        "$block",
    ],
)
def test_any_name_is_a_name_and_nothing_else(kind, rest):
    name = f"{uuid.uuid4().hex[:8]}{rest}"
    try:
        printed(kind, name)
        printed(kind, name)
        with connection.cursor() as cursor:
            cursor.execute("SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)", [name[:8]])
            assert cursor.fetchall() == [(name,)]
            cursor.execute("SELECT to_regclass('got_out')")
            assert cursor.fetchall() == [(None,)]
    finally:
        drop(name)


@pytest.mark.parametrize("name", ["", "two\nlines", "a\0b", "ü" * 32])
def test_what_can_not_be_the_name_of_a_role_is_refused(name):
    with pytest.raises(CommandError, match="is no name of a role, expected up to 63 bytes"):
        call_command("events", "grants", "--role", "reader", "--to", name)


def test_nothing_is_run_by_printing():
    called("events", "grants", "--role", "reader", "--to", "never_made", using="default")
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = 'never_made'")
        assert not cursor.fetchall()


def test_a_refused_row_is_not_told_with_the_error(make_topic, capsys):
    """PostgreSQL repeats the row that a constraint refuses, payload and all."""
    topic = make_topic("things")
    row = models.Topic.objects.get(name="things")
    run(f"ALTER TABLE django_events_event_{row.pk} ALTER COLUMN key SET NOT NULL")
    publish(topic, {"card": "0b5c-secret"})
    try:
        with pytest.raises(CommandError, match="not-null constraint") as caught:
            called("run_transfer", using="default", once=True)
    finally:
        models.BufferedEvent.objects.all().delete()
    assert "0b5c-secret" not in f"{caught.value} {capsys.readouterr()}"
