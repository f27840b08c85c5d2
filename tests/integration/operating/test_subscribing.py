"""Subscriptions: made and removed at run time, served by programs, and gone when nothing serves them."""

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_events import Backoff, Draft, claim, declarations, models, publish_many, queue
from django_events.consuming import registration
from django_events.consuming.programs.handed_out import ack, hand_out
from django_events.consuming.queues import filter_terms
from django_events.consuming.subscribed import note_served
from django_events.exceptions import InUse, Invalid, LeaseLost, Refused, UnknownName
from django_events.maintaining.expiring import expire
from django_events.maintaining.queues import serve_queues
from django_events.maintaining.steps import STEPS
from django_events.models.functions import ClockTimestamp
from django_events.models.maintenance import NEVER
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.problems.serving import idle_troubles
from django_events.operating.orphans import forget_orphans
from django_events.operating.subscribing import expire_some
from django_events.operations import add_webhook, remove_topic, resume, subscribe, unregister, unsubscribe
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P4")]

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ACME = {"where": "$.tenant == $tenant", "vars": {"tenant": "acme"}}


@pytest.fixture(autouse=True)
def gone_afterwards(transactional_db):
    yield
    models.Consumer.objects.filter(subscribed=True).delete()
    forget_orphans("default")


def row(name="acme"):
    return models.Consumer.objects.select_related("topic").get(name=name)


def pending(name="acme"):
    return list(models.Delivery.objects.of(name).values_list("event_id", flat=True))


def claimed_values(name="acme"):
    with claim(name, 100) as claimed:
        claimed.ack(*claimed)
        return [event.value for event in claimed]


def be_idle(name="acme", *, since=2 * DAY):
    models.Position.objects.filter(consumer__name=name).update(served_at=ClockTimestamp() - since)


def test_a_subscription_gets_the_events_that_its_filter_matches(things):
    fill_topic(things, {"tenant": "acme", "number": 0})

    made = subscribe("acme", things, **ACME, expires_after=DAY, reason="a new customer", by="ada")

    assert made == ("acme", "things", True, True, 2)
    fill_topic(things, {"tenant": "acme", "number": 1}, {"tenant": "other"}, {"tenant": ["x", "acme"], "number": 2})
    assert pending() == [2, 4]
    assert [value["number"] for value in claimed_values()] == [1, 2]
    [recorded] = models.Intervention.objects.filter(action="subscribe")
    assert (recorded.by, recorded.consumer, recorded.topic) == ("ada", "acme", "things")
    assert recorded.details == {**ACME, "expires_after": "1 day, 0:00:00", "reason": "a new customer"}


def test_types_keys_metadata_and_the_value_must_all_match(things):
    subscribe(
        "acme",
        things,
        types=["order.*"],
        keys=["a", "b"],
        where="$.total > $least",
        metadata='$.source == "web"',
        vars={"least": 10},
        expires_after=None,
    )

    fits = {"value": {"total": 11}, "type": "order.paid", "key": "a", "metadata": {"source": "web"}}
    others = [
        {"value": {"total": 10}},
        {"type": "invoice.paid"},
        {"key": "c"},
        {"key": None},
        {"metadata": {"source": "app"}},
        {"metadata": {}},
    ]
    publish_many(things, [Draft(**fits), *(Draft(**(fits | other)) for other in others), Draft(**fits)])
    transfer_all()

    assert pending() == [1, 8]


def test_repeating_it_changes_nothing(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    before = models.Consumer.objects.values().get(name="acme")

    assert subscribe("acme", things, **ACME, expires_after=DAY) == ("acme", "things", False, False, 1)

    assert models.Consumer.objects.values().get(name="acme") == before
    assert models.Intervention.objects.count() == 1


def test_another_filter_counts_from_the_id_that_is_said(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"}, {"tenant": "umbrella"})

    changed = subscribe("acme", things, where=ACME["where"], vars={"tenant": "umbrella"}, expires_after=HOUR)

    assert changed == ("acme", "things", False, True, 3)
    assert row().expires_after == HOUR
    fill_topic(things, {"tenant": "acme"}, {"tenant": "umbrella"})
    assert pending() == [1, 4]


def test_what_was_published_before_and_is_in_the_log_later_is_for_it(things):
    things.publish({"tenant": "acme"})

    assert subscribe("acme", things, **ACME, expires_after=DAY).first_id == 1

    transfer_all()
    assert pending() == [1]


def test_it_may_begin_in_the_past(things):
    fill_topic(things, *({"tenant": "acme", "number": number} for number in range(5)))

    assert subscribe("acme", things, **ACME, start=3, expires_after=DAY).first_id == 3

    assert [value["number"] for value in claimed_values()] == [2, 3, 4]


def test_maintenance_fills_one_that_begins_in_the_past(things):
    fill_topic(things, {"tenant": "acme"}, {"tenant": "other"})
    subscribe("acme", things, **ACME, start="beginning", expires_after=DAY)

    serve_queues("default", lambda: False)

    assert (pending(), row().live) == ([1], True)


def test_a_transfer_that_runs_makes_the_subscriber_wait_and_none_is_lost(things, in_thread, connect):
    session = connect()
    things.publish({"tenant": "acme"})
    session.execute("BEGIN")
    session.execute("SELECT FROM django_events_topichead WHERE topic_id = %s FOR UPDATE", [_topic_id(things)])

    made = in_thread(subscribe, "acme", things, **ACME, expires_after=DAY)
    wait_until(lambda: sessions_that_wait_for_a_lock())
    things.publish({"tenant": "acme"})
    session.execute("COMMIT")

    first_id = made.result(timeout=60).first_id
    transfer_all()
    assert (first_id, pending()) == (1, [1, 2])


def test_two_that_subscribe_at_once_make_one(things, in_thread, connect):
    session = connect()
    session.execute("BEGIN")
    session.execute("SELECT FROM django_events_topichead WHERE topic_id = %s FOR UPDATE", [_topic_id(things)])
    both = [in_thread(subscribe, "acme", things, **ACME, expires_after=DAY) for _ in range(2)]
    wait_until(lambda: sessions_that_wait_for_a_lock() == 2)
    session.execute("COMMIT")

    made = [one.result(timeout=60) for one in both]

    assert sorted(one.created for one in made) == [False, True]
    assert models.Consumer.objects.filter(name="acme").count() == 1


def test_in_a_transaction_it_is_undone_with_it(things):
    with transaction.atomic():
        subscribe("acme", things, **ACME, expires_after=DAY)
        transaction.set_rollback(True)

    assert not models.Consumer.objects.filter(name="acme").exists()
    assert not models.FilterTerm.objects.filter(topic_id=_topic_id(things)).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "$.tenant ="}, "PostgreSQL can't use as a jsonpath predicate"),
        ({"where": "$.tenant"}, "is neither true nor false for any value"),
        ({"metadata": "$.x ="}, "has metadata='\\$.x =', which PostgreSQL can't use"),
        ({"where": "$.a == 1 && $.tenant == $who"}, "names \\$who, and vars has no such value: none"),
        ({"where": "$.a == $a", "vars": {"a": {1}}}, "expected JSON values by name"),
        ({"vars": {"a": 1}}, "no predicate to name them"),
        ({"types": []}, "no event would match"),
        ({"keys": ["a.>.b"]}, "'>' means the rest"),
        ({"expires_after": timedelta(seconds=59)}, "expected a timedelta from 1 minute to ten years"),
        ({"expires_after": 60}, "expected a timedelta from 1 minute to ten years"),
    ],
)
def test_what_can_t_be_a_subscription_is_refused(things, options, message):
    with pytest.raises(Invalid, match=message):
        subscribe("acme", things, **{"expires_after": DAY, **options})
    assert not models.Consumer.objects.filter(name="acme").exists()


def test_the_name_of_a_declared_consumer_is_refused_both_ways(things, make_consumer):
    make_consumer(things, handler=print, name="reader", mode="queue")
    with pytest.raises(Refused, match=r"A consumer 'reader' is declared at .*, so no subscription can have the name"):
        subscribe("reader", things, expires_after=DAY)
    with pytest.raises(Refused, match="Consumer 'reader' is declared by an app, or was, and no subscription"):
        unsubscribe("reader")

    subscribe("acme", things, **ACME, expires_after=DAY)
    declared = queue(things, name="acme")
    try:
        with pytest.raises(Refused, match=r"a subscription has the name.*events unsubscribe acme --execute"):
            registration.register("default", declared)
    finally:
        declarations.consumers.discard(declared)
    assert row().subscribed


def test_the_name_of_a_consumer_that_no_app_declares_any_more_is_refused(things, make_consumer):
    declarations.consumers.discard(make_consumer(things, handler=print, name="reader", mode="queue"))

    with pytest.raises(Refused, match="was registered by an app or a query of Spark"):
        subscribe("reader", things, expires_after=DAY)


def test_true_is_another_variable_than_one(things):
    subscribe("acme", things, where="$.paid == $x", vars={"x": 1}, expires_after=None)
    assert subscribe("acme", things, where="$.paid == $x", vars={"x": True}, expires_after=None).changed
    fill_topic(things, {"paid": True})
    assert pending() == [1]


def test_the_name_of_a_webhook_endpoint_is_refused(things):
    add_webhook("acme", things, "https://example.com/hook")
    with pytest.raises(Refused, match="is a webhook endpoint"):
        subscribe("acme", things, expires_after=timedelta(days=7))


def test_an_unknown_topic_or_subscription_is_said(things):
    with pytest.raises(UnknownName, match="has no such topic"):
        subscribe("acme", "thongs", expires_after=DAY)
    subscribe("acme", things, **ACME, expires_after=DAY)
    with pytest.raises(UnknownName, match=r"Nor is there such a subscription.*acme"):
        hand_out("acne", 1)
    with pytest.raises(UnknownName, match=r"There is no subscription 'acne'.*acme"):
        unsubscribe("acne")


def test_unsubscribing_leaves_nothing(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"})

    assert unsubscribe("acme", dry_run=True) == ["things"]
    assert pending() == [1]
    assert unsubscribe("acme", reason="left us", by="ada") == ["things"]

    assert not models.Consumer.objects.filter(name="acme").exists()
    assert not models.Delivery.objects.exists()
    assert not models.FilterTerm.objects.filter(topic_id=_topic_id(things)).exists()
    fill_topic(things, {"tenant": "acme"})
    assert not models.Delivery.objects.exists()
    assert models.Intervention.objects.filter(action="unregister", by="ada", consumer="acme").exists()


def test_what_is_in_hand_or_dead_is_not_thrown_away(things):
    subscribe("acme", things, **ACME, expires_after=DAY, retry=Backoff(attempts=1))
    fill_topic(things, {"tenant": "acme"})
    with claim("acme") as claimed:
        with pytest.raises(InUse, match="is handling events now"):
            unsubscribe("acme")
        [event] = claimed
        claimed.nack(event, error=ValueError("no such order"))

    with pytest.raises(Refused, match="has 1 dead letters, which would be lost"):
        unsubscribe("acme")
    with pytest.raises(Refused, match="has 1 dead letters, which would be lost"):
        unregister("acme")
    assert unsubscribe("acme", force=True) == ["things"]


@pytest.mark.parametrize("few", [0, 50])
def test_a_filter_that_fails_stops_its_own_subscription_only(things, monkeypatch, few):
    """A date against a time with a zone: PostgreSQL raises that, whatever is to be silent."""
    monkeypatch.setattr(filter_terms, "FEW", few)
    late = '$.tenant == $tenant && $.at.datetime() < "2026-11-26T00:00:00+00:00".datetime()'
    subscribe("acme", things, where=late, vars=ACME["vars"], expires_after=DAY)
    subscribe("other", things, **ACME, expires_after=DAY)
    subscribe("all", things, expires_after=DAY)
    subscribe("umbrella", things, where=late, vars={"tenant": "umbrella"}, expires_after=DAY)

    fill_topic(things, {"tenant": "acme", "at": "2026-11-25T00:00:00+00:00"})
    fill_topic(things, {"tenant": "acme", "at": "2026-11-25"}, {"tenant": "acme", "at": "2026-11-25T00:00:00+00:00"})

    assert (pending("other"), pending("all"), pending("umbrella")) == ([1, 2, 3], [1, 2, 3], [])
    stopped = models.Position.objects.get(consumer__name="acme")
    assert (stopped.stopped_at is not None, row().live, pending()) == (True, False, [1])
    assert "filter fails" in stopped.error
    assert row("umbrella").live  # it has the same predicate, and was not tried on these events
    # The events wait in the log until the filter is repaired.
    subscribe("acme", things, **ACME, expires_after=DAY)
    resume("acme")
    assert len(claimed_values() + claimed_values()) == 3


@pytest.mark.requirement("P5")
def test_one_that_nothing_serves_goes_with_its_claim_on_retention(make_topic):
    things = make_topic("things", segment_size=100, retention=DAY)
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, *({"tenant": "acme"} for _ in range(250)))
    models.Position.objects.filter(consumer__name="acme").update(served_at=ClockTimestamp() - 23 * HOUR)
    assert expire_some("default") == []
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        models.Event.objects.filter(topic__name="things").update(logged_at=ClockTimestamp() - 3 * DAY)
        cursor.execute("RESET session_replication_role")
    topic = models.Topic.objects.select_related("head").get(name="things")
    assert expire("default", topic).kept_for == "acme"

    be_idle()
    step = next(step for step in STEPS if step.name == "subscriptions")
    assert step.run("default", lambda: False) == {"removed": ["acme of things"]}

    assert not models.Consumer.objects.filter(name="acme").exists()
    assert not models.Position.objects.filter(consumer__name="acme").exists()
    assert expire("default", topic).segments == 3
    forget_orphans("default")
    assert not models.Delivery.objects.exists()
    [recorded] = models.Intervention.objects.filter(action="unregister")
    assert (recorded.by, recorded.consumer, recorded.details["pending"]) == ("maintenance", "acme", 250)
    assert recorded.details["reason"].startswith("not served for ")


@pytest.mark.requirement("P5")
@pytest.mark.requirement("P5")
@pytest.mark.parametrize(("before", "gone"), [(timedelta(minutes=1), ["acme of things"]), (HOUR, [])])
def test_while_nothing_ran_here_nothing_could_serve_it(things, before, gone):
    """The server was away, or it is a dump that was restored."""
    subscribe("acme", things, expires_after=HOUR)
    be_idle()
    ended = models.MaintenanceStep.objects.filter(name="subscriptions")
    models.MaintenanceStep.objects.create(name="subscriptions", started_at=NEVER, holder="")
    ended.update(finished_at=ClockTimestamp() - before)
    assert expire_some("default") == gone
    ended.update(finished_at=ClockTimestamp())
    assert expire_some("default") == []


def test_the_command_of_maintenance_names_what_it_removed(things, capsys):
    subscribe("acme", things, **ACME, expires_after=DAY)
    be_idle()

    call_command("events", "maintain", "subscriptions")

    assert "removed: acme of things" in capsys.readouterr().out


@pytest.mark.requirement("P5")
def test_one_that_is_kept_for_ever_stays(things):
    subscribe("acme", things, **ACME, expires_after=None)
    models.Position.objects.filter(consumer__name="acme").update(served_at=ClockTimestamp() - 1_000 * DAY)

    assert expire_some("default") == []


@pytest.mark.requirement("P5")
@pytest.mark.parametrize("how", ["claim", "hand_out", "sql", "subscribe", "nested"])
def test_a_program_that_asks_for_its_events_keeps_it(things, how):
    subscribe("acme", things, **ACME, expires_after=DAY)
    be_idle()

    if how == "claim":
        assert claimed_values() == []
    elif how == "hand_out":
        assert hand_out("acme", 1) == (None, [])
    elif how == "sql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM django_events_claim('acme')")
    elif how == "nested":
        with transaction.atomic(), claim("acme") as claimed:
            assert not claimed
    else:
        subscribe("acme", things, **ACME, expires_after=DAY)

    assert expire_some("default") == []


@pytest.mark.requirement("P5")
def test_that_it_is_served_is_not_written_each_time(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    before = models.Position.objects.values("served_at").get(consumer__name="acme")

    for _ in range(3):
        claimed_values()
        note_served("default", [row().pk])

    assert models.Position.objects.values("served_at").get(consumer__name="acme") == before


@pytest.mark.requirement("P5")
def test_one_with_an_event_in_hand_stays_until_it_is_settled(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"})
    token, _ = hand_out("acme", 1)
    be_idle()

    assert expire_some("default") == []
    assert ack(token) == ([1], [])
    assert expire_some("default") == []  # it was served when that was settled


@pytest.mark.requirement("P5")
def test_a_claim_in_an_open_transaction_keeps_it(things, connect):
    subscribe("acme", things, **ACME, expires_after=DAY)
    be_idle()
    session = connect()
    session.execute("BEGIN")
    session.execute("SELECT * FROM django_events_claim('acme')")

    assert expire_some("default") == []

    session.execute("COMMIT")
    assert expire_some("default") == []


@pytest.mark.slow
@pytest.mark.requirement("P5")
def test_one_that_is_locked_stays_and_the_others_go(make_topic, connect):
    subscribe("acme", make_topic("one"), **ACME, expires_after=DAY)
    subscribe("other", make_topic("two"), **ACME, expires_after=DAY)
    be_idle()
    be_idle("other")
    session = connect()
    session.execute("BEGIN")
    session.execute(
        "SELECT FROM django_events_topichead AS h, django_events_topic AS t WHERE h.topic_id = t.id FOR UPDATE OF h"
    )
    assert expire_some("default") == []
    session.execute("ROLLBACK")
    session.execute("BEGIN")
    session.execute("SELECT FROM django_events_position WHERE consumer_id = %s FOR UPDATE", [row().pk])

    assert expire_some("default", until=lambda: True) == expire_some("default", seconds=0) == []
    assert expire_some("default") == ["other of two"]

    session.execute("ROLLBACK")
    assert expire_some("default") == ["acme of one"]


@pytest.mark.requirement("P5")
def test_a_claim_while_it_is_being_removed_gets_nothing(things, connect, in_thread):
    """The other side of the race: the claim comes when maintenance has the locks."""
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"})
    be_idle()
    session = connect()
    session.execute("BEGIN")
    session.execute("SELECT FROM django_events_deliverylease FOR UPDATE")
    with transaction.atomic():
        assert expire_some("default") == ["acme of things"]
        assert session.execute("SELECT * FROM django_events_claim('acme')").fetchall() == []
        session.execute("COMMIT")

    with pytest.raises(UnknownName):
        hand_out("acme", 1)
    assert not models.DeliveryLease.objects.exists()


@pytest.mark.requirement("P5")
def test_a_program_that_wakes_up_after_it_is_gone_settles_nothing(things):
    """Its lease is over long since: it was frozen with an event in hand."""
    subscribe("acme", things, **ACME, expires_after=DAY, history=DAY)
    fill_topic(things, {"tenant": "acme"}, {"tenant": "acme"})
    token, _ = hand_out("acme", 1)
    with pytest.raises(LeaseLost), claim("acme") as claimed:
        [event] = claimed
        models.DeliveryLease.objects.update(leased_until=ClockTimestamp() - DAY)
        be_idle()
        assert expire_some("default") == ["acme of things"]
        with pytest.raises(LeaseLost):
            ack(token)
        claimed.ack(event)

    forget_orphans("default")
    for model in (models.Delivery, models.DeliveryLease, models.PastDelivery):
        assert not model.objects.exists()
    assert not models.Consumer.objects.filter(name="acme").exists()


def test_a_removed_topic_takes_its_subscriptions_along(make_topic):
    things = make_topic("things")
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"})
    declarations.registry.discard(things)

    with pytest.raises(Refused, match="Topic things is read by acme"):
        remove_topic("things")
    remove_topic("things", force=True)

    assert not models.FilterTerm.objects.filter(source="value").exists()
    assert not models.Consumer.objects.filter(name="acme").exists()


def test_one_name_may_have_several_topics(make_topic):
    one, two = make_topic("one"), make_topic("two")
    subscribe("acme", one, **ACME, expires_after=DAY)
    subscribe("acme", two, keys=["acme"], expires_after=HOUR)
    fill_topic(one, {"tenant": "acme"})
    fill_topic(two, 2, key="acme")

    assert claimed_values() == [{"tenant": "acme"}]
    assert claimed_values() == [2]
    assert unsubscribe("acme", topic=two) == ["two"]
    assert unsubscribe("acme") == ["one"]


def sessions_that_wait_for_a_lock():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        [[count]] = cursor.fetchall()
    return count


def test_a_dry_run_changes_nothing(things):
    assert subscribe("acme", things, **ACME, expires_after=DAY, dry_run=True) == ("acme", "things", True, True, 1)

    assert not models.Consumer.objects.filter(name="acme").exists()
    assert not models.Intervention.objects.exists()


def test_nothing_is_wrong_with_one_that_waits_for_its_program(things):
    subscribe("acme", things, **ACME, expires_after=DAY)
    fill_topic(things, {"tenant": "acme"})

    found = find_problems("default", [], None, standings("default"))
    assert [one for one in found if one.subject.consumer == "acme"] == []
    assert idle_troubles("default", standings("default")) == {}


def test_the_command_tries_it_and_then_does_it(things, capsys):
    fill_topic(things, {"tenant": "acme"}, {"tenant": "other"}, {"tenant": "acme", "total": 5})
    asked = ["subscribe", "acme", "things", "--where", "$.tenant == $tenant && $.total > $least"]
    asked += ["--var", "tenant=acme", "--var", "least=4", "--expires-after", "7d", "--start", "beginning"]

    call_command("events", *asked)
    said = capsys.readouterr().out
    assert "1 of the newest 3 events of topic things match. Nothing was changed." in said
    assert not models.Consumer.objects.filter(name="acme").exists()
    call_command("events", *asked, "--execute")
    assert "Subscription acme is made: it gets what it asks for from things/1 on." in capsys.readouterr().out
    call_command("events", *asked, "--execute")
    assert "Subscription acme is like this already. Nothing was changed." in capsys.readouterr().out
    assert (row().vars, row().expires_after) == ({"tenant": "acme", "least": 4}, 7 * DAY)

    call_command("events", "match", "acme", "--format", "json")
    assert '"matching": 1' in capsys.readouterr().out
    call_command("events", "match", "--topic", "things", "--metadata", "$.a == $b", "--var", "b=1")
    assert "0 of the newest 3 events" in capsys.readouterr().out

    call_command("events", "unsubscribe", "acme")
    assert "It would be removed." in capsys.readouterr().out
    call_command("events", "unsubscribe", "acme", "--execute")
    assert "Subscription acme is removed." in capsys.readouterr().out
    assert not models.Consumer.objects.filter(name="acme").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["subscribe", "acme", "things"], "Say how long it stays"),
        (["subscribe", "acme", "things", "--keep", "--expires-after", "7d"], "Say how long it stays"),
        (["subscribe", "acme", "things", "--keep", "--var", "x"], "expected one like tenant=acme"),
        (["subscribe", "acme", "thongs", "--keep"], "no such topic"),
        (["subscribe", "acme", "things", "--keep", "--where", "$.a"], "neither true nor false"),
        (["unsubscribe", "acme"], "There is no subscription 'acme'"),
    ],
)
def test_the_command_says_what_is_wrong(things, arguments, message):
    with pytest.raises(CommandError, match=message):
        call_command("events", *arguments)


def _topic_id(topic):
    return models.Topic.objects.get(name=topic.name).pk
