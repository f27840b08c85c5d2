"""Databases that share keys: one is added, another is drained, and each key stays in order."""

import json
import random
from collections import defaultdict
from contextlib import closing, suppress
from io import StringIO

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections, transaction
from django.utils import timezone

from django_events import Draft, declarations, publish_many, shard_of
from django_events.consuming import registration
from django_events.exceptions import InUse, Invalid, InvalidEvent, NotReady, Refused, UnknownName, WrongShard
from django_events.log.transfer import Transfer
from django_events.maintaining.steps import STEPS
from django_events.models import (
    BufferedEvent,
    Consumer,
    Delivery,
    DeliveryLease,
    Intervention,
    MaintenanceStep,
    Position,
    ShardMap,
    ShardMove,
    Topic,
)
from django_events.operating import resharding
from django_events.operating.moved_keys import release, waiting_consumers
from django_events.operations import forget_shard, pause, reshard, resume, rewind, unregister
from django_events.publishing.shards import owner
from django_events.statements import log_table
from django_events.syncing import sync
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.maintaining import Maintenance, run_steps
from django_events.workers.stopping import Stop

ALL = ("default", "archive", "annex")
pytestmark = [pytest.mark.requirement("E11"), pytest.mark.usefixtures("transactional_db")]
AT_ONCE = resharding.timedelta(0)


class Site:
    """A topic that is in three databases, and consumers that write down what they handle, and where."""

    def __init__(self, topic, make_consumer):
        self.topic = topic
        self.make_consumer = make_consumer
        self.consumers = {}
        self.handled = defaultdict(list)
        self.published = defaultdict(list)

    def read(self, name="reader", **options):
        def handler(event):
            self.handled[name].append((event.database, event.key, event.value))

        self.consumers[name] = self.make_consumer(self.topic, handler=handler, name=name, **options)
        for using in ALL[1:]:
            registration.sync(using)
        return self.consumers[name]

    def publish(self, key, *, shard=None):
        shard = shard or shard_of(key)
        value = len(self.published[key])
        with transaction.atomic(using=shard):
            self.topic.publish(value, key=key, shard_by=key, using=shard)
        self.published[key].append(value)

    def transfer(self, *databases):
        for using in databases or ALL:
            worker = Transfer(using)
            while worker.move() or worker.left:
                pass

    def serve(self, *databases):
        """Whole workers that run until nothing is due there."""
        for using in databases or ALL:
            with (
                closing(Listener(using)) as listener,
                closing(ConsumerPool(using, list(self.consumers.values()), threads=1, listener=listener)) as pool,
                closing(Stop()) as stop,
            ):
                pool.run(stop, once=True)

    def work(self, *databases):
        self.transfer(*databases)
        self.serve(*databases)

    def finish(self):
        """Until no consumer waits for another shard, and all is handled."""
        for _ in range(20):
            self.work()
            left = [one for using in ALL for one in release(using)]
            if not left:
                for _ in range(3):  # a worker that turns, or goes over to another layout, ends there with once=True
                    self.work()
                return
        raise AssertionError({using: [one.said for one in waiting_consumers(using)] for using in ALL})

    def of_key(self, key, name="reader"):
        return [value for _, handled_key, value in self.handled[name] if handled_key == key]

    def assert_whole_and_in_order(self):
        for name in self.consumers:
            for key, published in self.published.items():
                assert self.of_key(key, name) == published, (name, key, self.handled[name])


@pytest.fixture
def make_site(archive, annex, make_topic, make_consumer):
    made = []

    def make(**options):
        topic = make_topic("prices", **options)
        for using in ALL[1:]:
            sync(using)
        made.append(Site(topic, make_consumer))
        return made[-1]

    yield make
    for using in ALL:
        # What the test declared, and what a change of the map did to all consumers.
        Consumer.objects.using(using).update(waits_from=None)
        Position.objects.using(using).update(barrier=None)
        for model in (ShardMap, ShardMove, Intervention, MaintenanceStep, BufferedEvent, Delivery, DeliveryLease):
            model.objects.using(using).all().delete()
    for using in ALL[1:]:
        rows = Topic.objects.using(using).filter(name__in=["prices", "only.here"])
        with connections[using].cursor() as cursor:
            for row in rows:
                cursor.execute(f"DROP TABLE {log_table(row.pk)} CASCADE")
        rows.delete()
        connections[using].close()


@pytest.fixture
def site(make_site):
    return make_site()


def key_that(is_at, becomes, *, before, after):
    """A key that is in a shard by one map, and in another one by the next."""
    keys = (f"key-{number}" for number in range(10_000))
    return next(key for key in keys if (owner(key, before), owner(key, after)) == (is_at, becomes))


TWO, THREE = ("archive", "default"), ("annex", "archive", "default")
MOVING = key_that("default", "annex", before=TWO, after=THREE)
STAYING = key_that("default", "default", before=TWO, after=THREE)


def events(*arguments):
    out = StringIO()
    call_command("events", *arguments, stdout=out)
    return out.getvalue()


# Publishing


@pytest.mark.slow
def test_without_a_map_the_key_has_no_shard(site):
    with pytest.raises(NotReady, match="has no map of shards"):
        shard_of("a")
    with pytest.raises(WrongShard, match="'default' is no shard") as caught:
        site.topic.publish(1, shard_by="a", using="default")
    assert caught.value.shard is None


@pytest.mark.slow
def test_a_key_is_published_in_its_shard_and_nowhere_else(site):
    reshard(add=TWO)
    assert shard_of(MOVING) == "default" == shard_of(MOVING, using="archive")
    site.publish(MOVING)
    with transaction.atomic(using="archive"):
        with pytest.raises(
            WrongShard, match=r"belongs to the shard 'default', by version 1 .* this is 'archive'"
        ) as caught:
            site.topic.publish(1, shard_by=MOVING, using="archive")
        site.topic.publish("the transaction goes on", using="archive")
    assert caught.value.shard == "default"
    site.transfer()
    assert Transfer("default").move() == 0
    with connections["archive"].cursor() as cursor:
        cursor.execute("SELECT value FROM django_events_event")
        assert [json.loads(value) for (value,) in cursor.fetchall()] == ["the transaction goes on"]


@pytest.mark.slow
def test_many_are_published_if_all_keys_are_there_or_none(site):
    reshard(add=TWO)
    other = key_that("archive", "archive", before=TWO, after=THREE)
    drafts = [Draft(value=1, shard_by=STAYING), Draft(value=2, shard_by=other), Draft(value=3)]
    with pytest.raises(WrongShard):
        publish_many(site.topic, drafts, using="default")
    assert publish_many(site.topic, [drafts[0], drafts[2]], using="default") == 2
    with transaction.atomic(), pytest.raises(InvalidEvent, match=r"drafts\[1\]: shard_by is 7"):
        publish_many(site.topic, [drafts[0], Draft(value=2, shard_by=7)], using="default")
    site.transfer()
    assert Topic.objects.get(name="prices").pk and Position.objects.count() >= 0


@pytest.mark.slow
def test_an_event_for_later_has_no_shard(site):
    reshard(add=TWO)
    with pytest.raises(InvalidEvent, match="either shard_by or publish_at"):
        site.topic.publish(1, shard_by="a", publish_at=timezone.now())


@pytest.mark.slow
def test_in_a_transaction_that_sees_an_older_map_it_is_an_error(site):
    """At REPEATABLE READ the new map isn't seen, and what is locked is another version of the row than what is seen."""
    reshard(add=TWO)
    connection = connections["default"]
    with pytest.raises(OperationalError, match="could not serialize"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM django_events_topic")
        with psycopg.connect(
            **{**connection.get_connection_params(), "autocommit": True, "cursor_factory": None}
        ) as other:
            other.execute("UPDATE django_events_shardmap SET version = version + 1")
        site.topic.publish(1, shard_by=STAYING)


# Adding and draining


@pytest.mark.parametrize(
    ("partitions", "options"),
    [
        pytest.param(1, {}, id="stream", marks=pytest.mark.long),
        pytest.param(4, {}, id="partitions"),
        pytest.param(4, {"partitioned": False}, id="together", marks=pytest.mark.long),
        pytest.param(1, {"mode": "queue", "ordered": True}, id="queue"),
    ],
)
@pytest.mark.few(1)
def test_a_key_that_moves_is_handled_in_order(make_site, options, partitions):
    site = make_site(partitions=partitions)
    site.read(**options)
    reshard(add=TWO)
    site.publish(MOVING)
    site.work()
    site.publish(MOVING)
    site.publish(STAYING)
    changed = reshard(add=["annex"])
    assert changed == (2, TWO, THREE, ("archive → annex", "default → annex"))
    assert shard_of(MOVING) == "annex"
    with pytest.raises(WrongShard, match="belongs to the shard 'annex'"):
        site.publish(MOVING, shard="default")
    site.publish(MOVING)
    site.work("annex", "archive")
    [found] = release("annex")
    assert (found.consumer, found.topic, found.waits_from) == ("reader", "prices", 1)
    assert [(one.shard, one.why) for one in found.waits_for] == [
        ("default", "events that were published before the move are not in its log yet")
    ]
    site.transfer("default")
    site.serve("annex")
    [found] = release("annex")
    assert found.said == (
        "reader of prices: it waits from event 1 on. For default: reader has events up to 3 to handle there."
    )
    site.publish(STAYING)  # what comes later there is not waited for
    site.publish(MOVING)
    site.work("annex")
    assert site.of_key(MOVING) == [0]
    pause("reader", using="default")
    assert "to handle there, and is paused" in release("annex")[0].said
    resume("reader", using="default")

    site.serve("default")
    assert release("annex") == []
    site.work()
    site.assert_whole_and_in_order()
    row = Consumer.objects.using("annex").get(name="reader")
    assert row.waits_from is None and not row.positions.using("annex").filter(barrier__isnull=False)
    if row.mode == "queue":
        assert row.live


@pytest.mark.slow
def test_the_page_of_a_consumer_says_that_it_waits(site, client):
    site.read()
    reshard(add=TWO)
    site.publish(MOVING)
    reshard(add=["annex"])
    row = Consumer.objects.using("annex").get(name="reader")
    client.force_login(get_user_model().objects.create_superuser("boss"))
    page = client.get(f"/admin/django_events/consumer/{row.pk}@annex/change/", follow=True).content.decode()
    assert "Waits for other shards</dt><dd>from event 1: archive, default</dd>" in page
    site.transfer()
    site.serve()
    release("annex")
    page = client.get(f"/admin/django_events/consumer/{row.pk}@annex/change/", follow=True).content.decode()
    assert "Waits for other shards" not in page


@pytest.mark.slow
def test_a_queue_without_order_doesn_t_wait(site):
    site.read(mode="queue")
    reshard(add=TWO)
    site.publish(MOVING)
    reshard(add=["annex"])
    site.publish(MOVING)
    site.work("annex")
    assert site.of_key(MOVING) == [1] and release("annex") == []


@pytest.mark.slow
def test_a_drained_shard_hands_over_what_it_has_to_all_others(site):
    site.read()
    site.read("queue", mode="queue", ordered=True)
    reshard(add=THREE)
    keys = [f"key-{number}" for number in range(12)]
    for key in keys:
        site.publish(key)
    site.work()
    for key in keys:
        site.publish(key)
    changed = reshard(drain=["default"])
    assert changed.moved == ("default → annex", "default → archive")
    for key in keys:
        site.publish(key)
    site.work("annex", "archive")
    stood = {using: [one.waits_for[0].shard for one in release(using)] for using in ALL}
    assert stood == {"default": [], "archive": ["default"] * 2, "annex": ["default"] * 2}
    site.finish()
    site.assert_whole_and_in_order()
    with pytest.raises(WrongShard, match="and this is 'default'"):
        site.publish(keys[0], shard="default")
    assert shard_of(MOVING) != "default"


@pytest.mark.long
def test_one_shard_after_the_other(site):
    """What waits for a shard that itself waits gets on: none waits in a circle."""
    site.read()
    reshard(add=["default"])
    keys = [f"key-{number}" for number in range(12)]
    changes = [
        {"add": ["annex"]},
        {"add": ["archive"]},
        {"drain": ["default"]},
        {"drain": ["annex"]},
        {"add": ["default"]},
    ]
    for change in changes:
        for key in keys:
            site.publish(key)
        site.transfer()
        reshard(**change)
    for key in keys:
        site.publish(key)
    site.finish()
    site.assert_whole_and_in_order()


@pytest.mark.slow
def test_a_change_waits_until_the_ends_of_the_former_one_are_known(site):
    site.read()
    reshard(add=["default"])
    site.publish(MOVING)
    reshard(add=["annex"])
    with pytest.raises(InUse, match=r"Events of prices that were published before .* Is its transfer running"):
        reshard(add=["archive"], wait=AT_ONCE)
    assert maps_of("default") == (2, ["annex", "default"], None)
    site.transfer()
    assert reshard(add=["archive"]).version == 3


def maps_of(using):
    return ShardMap.objects.using(using).values_list("version", "shards", "following").get()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_whatever_happens_each_key_is_handled_once_and_in_order(make_site, seed):
    """Random publishing, moving, handling, rewinding to the start of what waits, and changes of the map."""
    chance = random.Random(seed)
    site = make_site(partitions=chance.choice([1, 3]))
    site.read(partitioned=chance.choice([True, False]))
    site.read("queue", mode="queue", ordered=True)
    reshard(add=[chance.choice(ALL)])
    keys = [f"key-{number}" for number in range(8)]
    for _ in range(90):
        match chance.choice(["publish"] * 6 + ["transfer", "serve", "serve", "release", "reshard"]):
            case "publish":
                site.publish(chance.choice(keys))
            case "transfer":
                site.transfer(chance.choice(ALL))
            case "serve":
                site.serve(chance.choice(ALL))
            case "release":
                release(chance.choice(ALL))
            case "reshard":
                shards = set(maps_of(next(using for using in ALL if ShardMap.objects.using(using).exists()))[1])
                one = chance.choice(ALL)
                if {one} == shards:
                    continue
                try:
                    reshard(**{"drain" if one in shards else "add": [one]}, wait=AT_ONCE)
                except InUse:
                    site.transfer()
    site.finish()
    site.assert_whole_and_in_order()


# What is refused


@pytest.mark.slow
def test_what_can_t_be_done_changes_nothing(site):
    with pytest.raises(Invalid, match="Say which shards"):
        reshard()
    with pytest.raises(UnknownName, match="There is no database 'nowhere'"):
        reshard(add=["nowhere"])
    with pytest.raises(Refused, match="There is no map of shards"):
        reshard(drain=["default"])
    with transaction.atomic(), pytest.raises(Refused, match="inside a transaction"):
        reshard(add=["default"])
    assert reshard(add=["default"], dry_run=True) == (1, (), ("default",), ())
    assert not ShardMap.objects.exists()
    reshard(add=["default"])
    with pytest.raises(Refused, match="Without a shard"):
        reshard(drain=["default"])
    assert reshard(add=["default"]) == (1, ("default",), ("default",), ())


@pytest.mark.slow
def test_a_shard_without_a_topic_of_the_others_is_refused(site, make_topic):
    make_topic("only.here")
    reshard(add=["default"])
    with pytest.raises(NotReady, match=r"'annex' has no topic 'only.here', which 'default' has.* --database annex"):
        reshard(add=["annex"])
    assert maps_of("default") == (1, ["default"], None)


@pytest.mark.slow
def test_a_publisher_that_takes_long_is_named_and_the_change_goes_on_later(site, second_session):
    reshard(add=TWO)
    second_session.execute("BEGIN")
    second_session.execute("SELECT FROM django_events_shardmap FOR SHARE")
    with pytest.raises(InUse, match=r"The shard 'default' is locked, by session .*Say the same again"):
        reshard(add=["annex"], wait=AT_ONCE)
    assert maps_of("archive") == (2, list(TWO), list(THREE))
    assert maps_of("default") == (1, list(TWO), None)
    second_session.execute("ROLLBACK")
    assert "manage.py events shards add annex --execute" in events("shards")
    with pytest.raises(InUse, match=r"finish it first: manage\.py events shards add annex --execute"):
        reshard(drain=["default"])
    assert reshard(add=["annex"]).version == 2
    assert {maps_of(using)[0] for using in ALL} == {2} and maps_of("default")[2] is None


@pytest.fixture
def second_session(site):
    params = {**connections["default"].get_connection_params(), "autocommit": True, "cursor_factory": None}
    with psycopg.connect(**params) as session:
        yield session


STEPS_OF_A_CHANGE = 5  # two old shards in the first phase, three in the second


@pytest.mark.slow
@pytest.mark.parametrize("done", range(STEPS_OF_A_CHANGE))
@pytest.mark.few(1)
def test_while_a_change_is_interrupted_no_key_is_in_two_shards_and_it_can_be_finished(site, monkeypatch, done):
    site.read()
    reshard(add=TWO)
    site.publish(MOVING)
    site.publish(STAYING)
    stop_after(monkeypatch, done)
    with pytest.raises(KeyboardInterrupt):
        reshard(add=["annex"])
    monkeypatch.undo()
    for key in (MOVING, STAYING, *[f"key-{number}" for number in range(20)]):
        accepting = [using for using in ALL if accepts(site, using, key)]
        assert len(accepting) <= 1, key
        if owner(key, TWO) == owner(key, THREE):
            assert accepting == [owner(key, THREE)]
    site.transfer()

    assert reshard(add=["annex"]).after == THREE
    site.publish(MOVING)
    assert {maps_of(using) == (2, list(THREE), None) for using in ALL} == {True}
    assert ShardMove.objects.using("annex").filter(topic__name="prices").count() == 2
    site.finish()
    site.assert_whole_and_in_order()


@pytest.mark.slow
def test_what_was_drained_is_told_although_the_command_died_before(site, monkeypatch):
    reshard(add=TWO)
    reshard(drain=["default"])
    told = resharding._inform_drained
    monkeypatch.setattr(resharding, "_inform_drained", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reshard(add=["annex"])
    assert maps_of("default") == (2, ["archive"], None)

    monkeypatch.setattr(resharding, "_inform_drained", told)
    reshard(add=["annex"], dry_run=True)
    assert maps_of("default") == (2, ["archive"], None)
    reshard(add=["annex"])
    assert [maps_of(using) for using in ALL] == [(3, ["annex", "archive"], None)] * 3


def stop_after(monkeypatch, done):
    """As if the process were killed after so many transactions of a change."""
    patiently, steps = resharding._patiently, []

    def act(shard, act, until):
        if len(steps) == done:
            raise KeyboardInterrupt
        patiently(shard, act, until)
        steps.append(shard)

    monkeypatch.setattr(resharding, "_patiently", act)


def accepts(site, using, key):
    """Whether a key can be published there; it isn't."""
    try:
        with transaction.atomic(using=using):
            site.topic.publish(None, key=key, shard_by=key, using=using)
            transaction.set_rollback(True, using=using)
    except WrongShard:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("done", range(STEPS_OF_A_CHANGE))
@pytest.mark.parametrize("later", ["finished", "drained again"])
def test_one_that_was_frozen_changes_nothing_when_it_wakes_up_late(site, monkeypatch, done, later):
    reshard(add=TWO)
    patiently, steps = resharding._patiently, []

    def act(shard, act, until):
        if len(steps) == done:
            monkeypatch.undo()
            reshard(add=["annex"])
            if later != "finished":
                reshard(drain=["annex"])
            steps.append({using: maps_of(using) for using in ALL})
        patiently(shard, act, until)
        steps.append(shard)

    monkeypatch.setattr(resharding, "_patiently", act)
    with suppress(InUse):
        reshard(add=["annex"])
    assert {using: maps_of(using) for using in ALL} == steps[done]


@pytest.mark.slow
def test_of_two_changes_at_once_one_is_made_and_the_other_says_so(site, monkeypatch):
    reshard(add=["default"])
    patiently = resharding._patiently

    def act(shard, act, until):
        monkeypatch.undo()
        reshard(add=["archive"])
        patiently(shard, act, until)

    monkeypatch.setattr(resharding, "_patiently", act)
    with pytest.raises(InUse, match="Another process changes the shards"):
        reshard(add=["annex"])
    assert maps_of("default") == (2, list(TWO), None)
    assert not ShardMap.objects.using("annex").exists()


# Consumers that come, go and are rewound


@pytest.fixture
def moved(site):
    """A key has an event in the old shard that isn't handled, and one in the new one."""
    site.read()
    reshard(add=TWO)
    site.publish(MOVING)
    reshard(add=["annex"])
    site.publish(MOVING)
    site.transfer()
    return site


@pytest.mark.long
def test_a_consumer_that_comes_after_the_move_waits_too(moved):
    moved.read("late", start="beginning")
    moved.read("late.queue", start="beginning", mode="queue", ordered=True)
    moved.serve("annex")
    assert moved.handled["late"] == moved.handled["late.queue"] == []
    moved.finish()
    moved.assert_whole_and_in_order()


@pytest.mark.slow
def test_a_consumer_that_isn_t_registered_there_is_not_waited_for(moved):
    declarations.consumers.discard(moved.consumers["reader"])
    unregister("reader", using="default")
    assert release("annex") == []
    moved.serve("annex")
    assert moved.of_key(MOVING) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.few(1)
def test_after_a_rewind_it_waits_again_if_the_other_is_rewound_too(moved, mode):
    moved.read("again", mode=mode, start="beginning", **({"ordered": True} if mode == "queue" else {}))
    moved.finish()
    moved.handled.clear()
    for using in ("annex", "default"):
        rewind("again", to="beginning", using=using)
    moved.serve("annex")
    assert moved.of_key(MOVING, "again") == [] and len(waiting_consumers("annex")) == 1
    moved.serve("default")
    release("annex")
    moved.serve("annex")
    assert moved.of_key(MOVING, "again") == [0, 1]

    rewind("again", to="beginning", using="annex")  # it alone: the other one has passed all that comes before
    assert release("annex") == []
    moved.serve("annex")
    assert moved.of_key(MOVING, "again") == [0, 1, 1]


@pytest.mark.slow
def test_a_rewind_beyond_what_it_waits_for_doesn_t_end_the_wait(moved):
    moved.publish(MOVING)
    rewind("reader", to=2, using="annex")
    moved.work("annex")
    assert moved.of_key(MOVING) == [] and len(release("annex")) == 1
    moved.finish()
    assert moved.of_key(MOVING) == [0, 2]  # the operator left one out


@pytest.mark.long
def test_a_queue_that_becomes_ordered_waits(site):
    site.read(mode="queue")
    reshard(add=TWO)
    site.publish(MOVING)
    reshard(add=["annex"])
    site.publish(MOVING)
    site.transfer()
    site.read(mode="queue", ordered=True)
    assert ("reader", 1) in [(one.consumer, one.waits_from) for one in waiting_consumers("annex")]
    site.finish()
    site.assert_whole_and_in_order()
    reshard(drain=["annex"])
    site.publish(MOVING)
    site.read(mode="queue", ordered=False)
    assert "prices" not in [one.topic for one in waiting_consumers("default")]


@pytest.mark.slow
def test_a_consumer_that_waits_can_get_more_partitions_and_turn(make_site):
    site = make_site(partitions=2)
    site.read()
    site.read("turning", partitioned=False)
    reshard(add=TWO)
    site.publish(MOVING)
    reshard(add=["annex"])
    site.publish(MOVING)
    site.transfer()
    from django_events.operations import repartition

    repartition("prices", 5, using="annex")
    site.read("turning", partitioned=True)
    site.read(partitioned=False)
    site.publish(MOVING)
    site.work("annex")
    assert site.of_key(MOVING) == site.of_key(MOVING, "turning") == []
    site.finish()
    site.assert_whole_and_in_order()


@pytest.mark.slow
def test_a_topic_that_is_removed_there_is_not_waited_for(moved):
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE django_events_topic SET incarnation = gen_random_uuid() WHERE name = 'prices'")
    ShardMove.objects.using("annex").filter(source="default").update(source_last_id=10, source_incarnation="0" * 32)
    assert release("annex") == []


# A shard that is out of reach


@pytest.mark.slow
def test_while_a_source_can_t_be_reached_its_keys_wait_and_it_can_be_forgotten(moved):
    moved.serve("default", "archive")
    settings = connections.settings.pop("default")
    try:
        answers = release("annex")
    finally:
        connections.settings["default"] = settings
    [found] = [one for one in answers if one.topic == "prices"]
    assert [one.shard for one in found.waits_for] == ["default"] and "can't be asked" in found.said
    with pytest.raises(Refused, match="'default' is a shard"):
        forget_shard("default", using="annex")
    ShardMove.objects.using("annex").filter(source="default", topic__name="prices").update(source="lost")
    assert "lost: it can't be asked." in release("annex")[0].said
    assert forget_shard("lost", using="annex", dry_run=True) == 1
    assert "Nothing was changed" in events("shards", "forget", "lost", "--database", "annex")
    assert forget_shard("lost", using="annex") == 1
    assert release("annex") == []


# What is shown


@pytest.mark.slow
def test_the_command_says_what_it_does_and_who_waits(site):
    site.read()
    assert events("shards").strip() == "No shards."
    dry = events("shards", "add", *TWO)
    assert "Version 1 of the map: none → archive, default." in dry and "with --execute" in dry
    assert not ShardMap.objects.exists()
    events("shards", "add", *TWO, "--execute")
    site.publish(MOVING)
    site.transfer()
    told = json.loads(events("shards", "add", "annex", "--execute", "--wait", "0s", "--format", "json"))
    assert told["executed"] and told["version"] == 2 and list(told["waiting"]) == ["annex"]
    listed = events("shards")
    assert "annex: reader of prices: it waits from event 1 on. For default: reader has events up to 1" in listed
    assert json.loads(events("shards", "--format", "json"))["unfinished"] is None
    assert "are annex, archive, default already" in events("shards", "add", "annex", "--execute", "--wait", "0s")
    for using in ALL:
        assert Intervention.objects.using(using).filter(action="reshard").count() == (1 if using == "annex" else 2)
    with pytest.raises(CommandError, match="Say what to do with which shard"):
        events("shards", "add")
    assert "it waits from event 1 on" in events("consumers", "--database", "annex")
    assert "it waits from event 1 on" in events("status", "--database", "annex")
    told = json.loads(events("consumers", "reader", "--database", "annex", "--format", "json"))
    assert [(one["waits_from"], one["barrier"]) for one in told] == [(1, None)]
    events("verify", "--database", "annex")
    site.serve()
    assert "wait" not in events("shards", "add", "annex", "--execute")


@pytest.mark.slow
def test_maintenance_lets_them_go_on_and_looks_every_second_meanwhile(moved):
    maintenance = Maintenance("annex")
    with closing(Stop()) as stop:
        maintenance.work(stop)
        assert maintenance._soon
        moved.serve("default")
        step = next(step for step in STEPS if step.name == "shards")
        run_steps("annex", [step])
        assert waiting_consumers("annex") == []
        ShardMove.objects.using("annex").all().delete()
        maintenance.work(stop)
    moved.serve()
    moved.assert_whole_and_in_order()
