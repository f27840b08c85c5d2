"""`capture()`: what statements do to a table is published by the table, from any client."""

import json
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pgtrigger
import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction
from django.db.models import F
from django.test.utils import isolate_apps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Composed, Identifier

from django_events import capture, declarations, event_context, suppress
from django_events.exceptions import Invalid, InvalidEvent
from django_events.models import BufferedEvent
from django_events.publishing.capture import Capture
from django_events.testing import published
from tests.support.fix_topics import assert_dense, transfer_all
from tests.support.publishing_app.models import Account, Awkward, Captured, Everything, SavingsAccount, Shelf, Tag

rolled_back = pytest.mark.django_db
committing = pytest.mark.usefixtures("transactional_db")
IN_ONE_DATABASE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def events(topic="accounts"):
    return [(event.type, event.key, event.value) for event in published(topic)]


def types(topic="accounts"):
    return [event.type for event in published(topic)]


def forget():
    BufferedEvent.objects.all().delete()


def execute(statement, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.rowcount


# What is an event, and what it says


@pytest.mark.requirement("P11")
@rolled_back
def test_inserted_updated_and_deleted_rows_are_events():
    tag = Tag.objects.create(name="Ada")
    account = Account.objects.create(balance="12.5", owner=tag, iban="DE02", pin="1234", note="O'Brien")
    pk = str(account.pk)
    account.balance, account.pin = Decimal("7.25"), "9999"
    account.save()
    account.delete()

    row = {"id": int(pk), "owner_id": tag.pk, "balance": "12.50", "iban": "***", "note": "O'Brien", "seen": None}
    assert events() == [
        ("account.created", pk, row),
        (
            "account.updated",
            pk,
            {**row, "balance": "7.25", "changed": {"balance": {"old": "12.50", "new": "7.25"}}},
        ),
        ("account.deleted", pk, {**row, "balance": "7.25"}),
    ]


@pytest.mark.requirement("P11")
@rolled_back
def test_what_django_sends_no_signals_for_is_seen():
    made = Account.objects.bulk_create([Account(balance=n) for n in range(5)])
    Account.objects.filter(balance__gte=2).update(balance=F("balance") + 10)
    Account.objects.bulk_update([*made[:1]], ["note"])
    Account.objects.filter(balance__lt=2).delete()
    execute("INSERT INTO publishing_app_account (balance) SELECT n FROM generate_series(1, 3) AS n")
    with connection.cursor() as cursor, cursor.copy("COPY publishing_app_account (balance) FROM STDIN") as copy:
        copy.write_row((5,))
    execute("WITH gone AS (DELETE FROM publishing_app_account RETURNING id) SELECT count(*) FROM gone")

    assert types() == (
        ["account.created"] * 5
        + ["account.updated"] * 3
        + ["account.deleted"] * 2
        + ["account.created"] * 3
        + ["account.created"]
        + ["account.deleted"] * 7
    )


@rolled_back
def test_upserts_are_what_they_turn_out_to_be():
    Shelf.objects.create(code="a", place="left")
    shelves = [Shelf(code="a", place="right"), Shelf(code="b", place="top")]
    Shelf.objects.bulk_create(shelves, update_conflicts=True, unique_fields=["code"], update_fields=["place"])

    assert events("shelves") == [
        (
            "shelf.moved",
            "a",
            {
                "code": "a",
                "place": "right",
                "is_open": True,
                "label": "",
                "changed": {"place": {"old": "left", "new": "right"}},
            },
        )
    ]


@pytest.mark.requirement("P11")
@rolled_back
def test_an_update_to_null_and_from_null_is_an_event():
    account = Account.objects.create(note="a")
    forget()
    Account.objects.update(note=None)
    Account.objects.update(note=None)
    Account.objects.update(note="b")

    assert [value["changed"] for _, _, value in events()] == [
        {"note": {"old": "a", "new": None}},
        {"note": {"old": None, "new": "b"}},
    ]
    assert {key for _, key, _ in events()} == {str(account.pk)}


@rolled_back
def test_an_update_that_changes_nothing_that_is_shown_is_no_event():
    account = Account.objects.create(balance=5, pin="1")
    forget()
    account.save()
    Account.objects.update(balance=F("balance"))
    Account.objects.update(pin="2")

    assert events() == []


@rolled_back
def test_what_is_masked_is_said_to_have_changed_and_not_to_what():
    Account.objects.create(iban="DE02")
    forget()
    Account.objects.update(iban="DE03")
    Account.objects.update(iban=None)

    assert [(value["iban"], value["changed"]) for _, _, value in events()] == [
        ("***", {"iban": {"old": "***", "new": "***"}}),
        (None, {"iban": {"old": "***", "new": None}}),
    ]


@rolled_back
def test_a_changed_primary_key_is_another_row():
    first, second = Account.objects.bulk_create([Account(balance=1), Account(balance=2)])
    forget()
    execute("UPDATE publishing_app_account SET id = -id WHERE id = %s", first.pk)
    execute("UPDATE publishing_app_account SET id = -id, balance = 9")

    assert sorted((type, key) for type, key, _ in events()) == sorted(
        [
            *[("account.deleted", str(first.pk)), ("account.created", str(-first.pk))],
            *[("account.deleted", str(-first.pk)), ("account.created", str(first.pk))],
            *[("account.deleted", str(second.pk)), ("account.created", str(-second.pk))],
        ]
    )


@rolled_back
def test_only_watched_columns_and_rows_that_meet_the_condition():
    shelf = Shelf.objects.create(code="a", place="left")
    Shelf.objects.update(label="new")
    assert events("shelves") == []
    Shelf.objects.update(place="right")
    assert types("shelves") == ["shelf.moved"]
    Shelf.objects.update(label="O'Brien's NEW.label 100%", place="top")
    Shelf.objects.update(label="", is_open=False, place="left")
    shelf.delete()

    assert types("shelves") == ["shelf.moved"]


@rolled_back
def test_a_child_is_captured_in_its_own_table_and_its_parents():
    savings = SavingsAccount.objects.create(balance=5, rate=1.5)
    savings.rate = 2
    savings.save()
    savings.delete()
    pk = savings.account_ptr_id or events()[0][2]["id"]

    assert [(type, key) for type, key, _ in events()] == [
        ("account.created", str(pk)),
        ("savingsaccount.created", str(pk)),
        ("savingsaccount.updated", str(pk)),
        ("savingsaccount.deleted", str(pk)),
        ("account.deleted", str(pk)),
    ]
    assert events()[2][2] == {
        "account_ptr_id": pk,
        "rate": 2.0,
        "changed": {"rate": {"old": 1.5, "new": 2.0}},
    }


VALUES = {
    "boolean": st.booleans(),
    "big": st.integers(-(2**60), 2**60),
    "float": st.floats(width=64),
    "decimal": st.decimals(min_value=-(10**7), max_value=10**7, places=4),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    "json": st.dictionaries(st.text("abc"), st.none() | st.booleans() | st.integers() | st.text("xyz'\\")),
    "date": st.dates(date(1000, 1, 1)),
    "time": st.times(),
    "datetime": st.datetimes(datetime(1000, 1, 1), timezones=st.just(UTC)),
    "duration": st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
    "binary": st.binary(max_size=90),
    "address": st.ip_addresses().map(str),
    "uuid": st.uuids(),
    "file": st.text("abc/", min_size=1, max_size=20),
    "url": st.just("https://example.org/ä"),
}


@pytest.mark.slow
@pytest.mark.requirement("P11")
@rolled_back
@IN_ONE_DATABASE
@given(first=st.fixed_dictionaries({}, optional=VALUES), second=st.fixed_dictionaries({}, optional=VALUES))
def test_a_trigger_and_a_signal_write_fields_of_each_kind_the_same_way(first, second):
    forget()
    made = Everything.objects.create(**first)
    for name, value in second.items():
        setattr(made, name, value)
    made.save()
    made.delete()

    by_signals = [value for _, _, value in events("library")]
    by_triggers = [value for _, _, value in events("captured")]
    if len(by_triggers) == 2:  # nothing changed, which is no event of a trigger
        del by_signals[1]
    shown = [{k: v for k, v in value.items() if k != "changed"} for value in by_triggers]
    for value in (*shown, *by_signals):
        if isinstance(value["float"], int):  # JSON knows no difference, and several decimals are the same float
            value["float"] = float(value["float"])
    assert shown == by_signals


@pytest.mark.slow
@pytest.mark.requirement("D6")
@rolled_back
@IN_ONE_DATABASE
@given(
    values=st.fixed_dictionaries({}, optional=VALUES),
    zone=st.sampled_from(["UTC", "Asia/Kolkata", "America/Chicago"]),
    dates=st.sampled_from(["iso, mdy", "german, dmy", "sql, dmy"]),
    durations=st.sampled_from(["sql_standard", "iso_8601", "postgres_verbose"]),
)
def test_a_trigger_writes_the_same_whatever_the_session_is_set_to(values, zone, dates, durations):
    Everything.objects.create(**values)
    Everything.objects.update(boolean=None)
    forget()
    before = [setting(name) for name in ("TimeZone", "DateStyle", "IntervalStyle")]
    for style in (before, [zone, dates, durations]):
        for name, value in zip(("TimeZone", "DateStyle", "IntervalStyle"), style, strict=True):
            execute(f"SET LOCAL {name} = '{value}'")
        execute("UPDATE publishing_app_everything SET boolean = NOT coalesce(boolean, false)")
    for name, value in zip(("TimeZone", "DateStyle", "IntervalStyle"), before, strict=True):
        execute(f"SET LOCAL {name} = '{value}'")
    Everything.objects.all().delete()

    first, second = [value for type, _, value in events("captured")][:2]
    for value in (first, second):
        del value["boolean"], value["changed"]
    assert first == second


def setting(name):
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return cursor.fetchone()[0]


# Together with its statement, or not at all


@committing
def test_events_roll_back_with_their_statement():
    with transaction.atomic():
        Account.objects.create(balance=1)
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            Account.objects.create(balance=2)
            transaction.set_rollback(True)
        Account.objects.create(balance=3)

    assert [value["balance"] for _, _, value in events()] == ["3.00"]


@committing
def test_many_who_write_at_once_are_all_in_the_log(in_thread):
    def write(number):
        for i in range(10):
            with transaction.atomic():
                Account.objects.bulk_create([Account(balance=number, note=str(i))] * 3)
                Account.objects.filter(balance=number, note=str(i)).update(seen=datetime(2026, 1, 1, tzinfo=UTC))
                transaction.set_rollback(i % 3 == 0)

    for future in [in_thread(write, number) for number in range(5)]:
        future.result()
    transfer_all()

    assert sorted(types()) == ["account.created"] * 90 + ["account.updated"] * 90
    assert_dense(declarations.registry.get("accounts"))


@pytest.mark.requirement("E3", "P3")
@committing
def test_the_events_of_a_row_are_in_the_order_of_its_changes():
    account = Account.objects.create(balance=0)
    for n in range(1, 30):
        Account.objects.filter(pk=account.pk).update(balance=n)
    transfer_all()

    assert [value["balance"] for _, _, value in events()] == [f"{n}.00" for n in range(30)]


@pytest.mark.slow
@rolled_back
def test_100_000_rows_of_one_update_are_one_statement():
    execute(
        "INSERT INTO publishing_app_account (balance, \"group\") SELECT n, 'a' FROM generate_series(1, 100000) AS n"
    )
    forget()
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) UPDATE publishing_app_account SET \"group\" = 'b'")
        [[plan]] = cursor.fetchall()
    [trigger] = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Triggers"]

    assert trigger["Calls"] == 1
    assert BufferedEvent.objects.count() == 100_000


# Context, and nothing at all


@pytest.mark.requirement("P11")
@rolled_back
def test_the_context_is_in_the_metadata_and_only_in_its_block():
    Account.objects.create(note="before")
    with event_context(user=7):
        Account.objects.create(note="in 7")
        with event_context(request="O'Brien % {} ä"):
            Account.objects.filter(note="in 7").update(note="in both")
        Account.objects.bulk_create([Account(note="in 7 again")])
    Account.objects.create(note="after")

    assert [event.metadata for event in published("accounts")] == [
        {},
        {"user": 7},
        {"user": 7, "request": "O'Brien % {} ä"},
        {"user": 7},
        {},
    ]


@committing
def test_the_context_reaches_triggers_in_autocommit_and_leaves_nothing_in_the_session():
    with event_context(user=lambda: 7):
        account = Account.objects.create(note="100%")
        with connection.cursor() as cursor:
            cursor.execute('UPDATE publishing_app_account SET "group" = %s RETURNING id, "group"', ["%s"])
            assert cursor.fetchall() == [(account.pk, "%s")]
            assert cursor.rowcount == 1
            cursor.execute("UPDATE publishing_app_account SET \"group\" = '100%' /* no parameters: % */")
            cursor.executemany('UPDATE publishing_app_account SET "group" = %s', [["a"], ["b"]])
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('django_events.context', true)")
        assert cursor.fetchone()[0] in (None, "")
    Account.objects.all().delete()

    assert [event.metadata for event in published("accounts")] == [{"user": 7}] * 5 + [{}]


@committing
def test_a_savepoint_that_is_rolled_back_takes_no_context_along():
    with transaction.atomic(), event_context(user=7):
        with transaction.atomic():
            Account.objects.create(note="gone")
            transaction.set_rollback(True)
        Account.objects.create(note="there")

    assert [event.metadata for event in published("accounts")] == [{"user": 7}]


@committing
def test_a_copy_of_ones_own_knows_that_a_block_has_ended_and_that_it_is_suppressed():
    def copy():
        with connection.cursor() as cursor, cursor.copy("COPY publishing_app_account (balance) FROM STDIN") as copying:
            copying.write_row((5,))

    with transaction.atomic():
        with event_context(user=7):
            Account.objects.create()
            copy()
        copy()
        with suppress():
            copy()
        with event_context(user=8):
            Account.objects.create()
            with suppress(Account):
                copy()
            copy()

    assert [event.metadata for event in published("accounts")] == [
        {"user": 7},
        {"user": 7},
        {},
        {"user": 8},
        {"user": 8},
    ]


@rolled_back
def test_a_context_that_only_reads_costs_nothing(django_assert_num_queries):
    with django_assert_num_queries(1), event_context(user=lambda: Account.objects.count()):
        list(Account.objects.all())


@pytest.mark.parametrize("value", [object(), str, {1, 2}])
def test_a_context_that_is_no_json_is_refused_where_it_is_given(value):
    with (
        pytest.raises(InvalidEvent, match=r"user of event_context\(\) can't be written as JSON"),
        event_context(request=5, user=value),
    ):
        raise AssertionError("inside")


@rolled_back
def test_a_function_of_the_context_is_called_once_also_for_blocks_within():
    calls = []

    def ask():
        calls.append(1)
        return len(calls)

    with event_context(user=ask):
        with event_context(more=1):
            Account.objects.create()
        Account.objects.create()

    assert [event.metadata["user"] for event in published("accounts")] == [1, 1]


@rolled_back
def test_a_function_that_fails_is_called_again():
    answers = iter([ZeroDivisionError(), 7])

    def ask():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    with event_context(user=ask):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Account.objects.create()
        Account.objects.create()

    assert [event.metadata for event in published("accounts")] == [{"user": 7}]


@rolled_back
def test_an_anonymous_block_has_the_context():
    with event_context(user=7):
        execute("DO $$ BEGIN INSERT INTO publishing_app_account (balance) VALUES (1); END $$")

    assert [event.metadata for event in published("accounts")] == [{"user": 7}]


@rolled_back
def test_an_error_within_a_context_is_the_statements_own():
    with event_context(user=7):
        Shelf.objects.create(code="a")
        with pytest.raises(IntegrityError), transaction.atomic():
            Shelf.objects.create(code="a", pk="a")
        Account.objects.create(note="goes on")

    assert [event.metadata for event in published("accounts")] == [{"user": 7}]


@rolled_back
def test_nothing_is_captured_where_it_is_suppressed():
    with suppress():
        Account.objects.create()
        with connection.cursor() as cursor, cursor.copy("COPY publishing_app_account (balance) FROM STDIN") as copy:
            copy.write_row((5,))
    with suppress(Shelf, Captured):
        Account.objects.create(note="another model")
        Shelf.objects.create(code="a", place="left")
        Shelf.objects.update(place="right")
        Everything.objects.create()
    Shelf.objects.update(place="left")

    assert [value["note"] for _, _, value in events()] == ["another model"]
    assert (types("shelves"), types("captured"), types("library")) == (
        ["shelf.moved"],
        [],
        [],
    ), "a proxy is its model"


@rolled_back
def test_reading_within_a_context_is_what_it_was(django_assert_num_queries):
    Account.objects.bulk_create([Account(note=str(n)) for n in range(5)])
    # The fifth tells the transaction of the test that the block has ended.
    with django_assert_num_queries(5), event_context(user=7):
        assert Account.objects.count() == 5
        assert len(list(Account.objects.iterator(chunk_size=2))) == 5
        assert Account.objects.update(note="x") == 5
        assert Account.objects.filter(note="x").exists()


@rolled_back
def test_columns_may_be_called_like_anything(caplog):
    Awkward.objects.create(shown="secret", r=1, n=2, o=3, kind="k", type="t", old_values=4, metadata="m", topic_id=5)
    Awkward.objects.update(shown="secret 2", r=10)
    Awkward.objects.create(kind="100%% of %")
    row = {"r": 1, "n": 2, "o": 3, "kind": "k", "type": "t", "old_values": 4, "metadata": "m", "topic_id": 5}
    (_, _, created), (_, _, updated) = events("captured")

    assert created == {"id": created["id"], **row}
    assert updated == {"id": created["id"], **row, "r": 10, "changed": {"r": {"old": 1, "new": 10}}}


# The statements of others


@committing
def test_a_procedure_that_commits_goes_on_doing_so():
    execute("CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
    try:
        with event_context(user=7):
            execute("CALL commits()")
            execute("DO $$ BEGIN COMMIT; END $$")
    finally:
        execute("DROP PROCEDURE commits")


@committing
def test_statements_of_psycopg_and_bytes_are_what_they_say():
    with event_context(user=7), connection.cursor() as cursor:
        cursor.execute(Composed([SQL("VACUUM "), Identifier("publishing_app_account")]))
        cursor.execute(SQL("INSERT INTO {} (balance) VALUES (%s)").format(Identifier("publishing_app_account")), [5])
        cursor.execute(b"INSERT INTO publishing_app_account (balance) VALUES (6)")
        cursor.execute("EXPLAIN ANALYZE INSERT INTO publishing_app_account (balance) VALUES (7)")
        assert "Insert on publishing_app_account" in cursor.fetchone()[0]

    assert [(event.value["balance"], event.metadata) for event in published("accounts")] == [
        (f"{n}.00", {"user": 7}) for n in (5, 6, 7)
    ]


@rolled_back
def test_an_error_of_many_that_a_savepoint_undoes_leaves_the_transaction_usable():
    with event_context(user=7), connection.cursor() as cursor:
        savepoint = connection.savepoint()
        with pytest.raises(IntegrityError):
            cursor.executemany(
                "INSERT INTO publishing_app_shelf (code, is_open, label) VALUES (%s, true, '')", [["a"]] * 2
            )
        transaction.savepoint_rollback(savepoint)
        Account.objects.create(note="goes on")

    assert [event.metadata for event in published("accounts")] == [{"user": 7}]


@rolled_back
def test_other_wrappers_see_statements_as_they_were():
    seen = []

    def look(execute, statement, parameters, many, context):
        seen.append(statement)
        return execute(statement, parameters, many, context)

    with event_context(user=7), connection.execute_wrapper(look):
        Account.objects.filter(pk=0).update(note="x")
    assert [statement.split()[0] for statement in seen] == ["UPDATE"]


@pytest.mark.parametrize("within", [nullcontext, transaction.atomic])
@pytest.mark.parametrize(
    "others",
    [lambda: pgtrigger.ignore("publishing_app.Shelf:capture_shelves_updated"), lambda: pgtrigger.schema("public")],
)
@committing
def test_what_others_tell_in_front_of_a_statement_does_not_hide_it(within, others):
    with within(), event_context(user="100 %"), others():
        Account.objects.create(note="in a context")
        Account.objects.bulk_create([Account(note="another")])
        with suppress():
            Account.objects.create(note="suppressed")
            Account.objects.update(note="suppressed")

    assert [(event.value["note"], event.metadata) for event in published("accounts")] == [
        ("in a context", {"user": "100 %"}),
        ("another", {"user": "100 %"}),
    ]


def test_the_first_word_of_a_statement_is_found_behind_comments_in_no_time():
    from django_events.publishing.session_settings import _first_word

    assert _first_word("/*a*/" * 50_000 + " -- b\n (SELECT 1)") == "select"
    assert _first_word("  InSeRt INTO x") == "insert"
    assert _first_word("SELECT set_config('a', 'b;''c', true), set_config('d', %s, true); UPDATE x") == "update"
    assert _first_word("SELECT set_config('a', 'b', true)") == "select"
    assert _first_word("SELECT set_config(" + "'a'," * 50_000) == "select"
    assert [_first_word(text) for text in ("", "--", "/* ", ";", "/**/")] == [""] * 5


# Declarations


@isolate_apps("tests.support.publishing_app")
def problem_of(**options):
    class Thing(models.Model):
        name = models.CharField(max_length=5)
        tags = models.ManyToManyField(Tag, related_name="+")

        class Meta:
            app_label = "publishing_app"

    with pytest.raises(Invalid) as caught:
        for trigger in capture("accounts", **options):
            trigger.get_func(Thing)
    return str(caught.value)


def test_wrong_declarations_are_refused():
    there = "There are id, name."
    assert problem_of(fields=["nmae"]).endswith(f"has 'nmae' in fields, which is no column of its own table. {there}")
    assert "'tags' in watch" in problem_of(watch=["tags"])
    assert "'x' in mask" in problem_of(mask=["x"])
    assert "'x' in exclude" in problem_of(exclude="x")
    assert f"key='x', which is no column of its own table. {there}" in problem_of(key="x")
    assert "without $" in problem_of(created="$$; DROP TABLE x; --")
    assert "at most 200 characters" in problem_of(deleted="x" * 201)
    assert "a row that is created has no such values" in problem_of(condition=pgtrigger.Q(old__name="a"))
    assert "a row that is deleted has no such values" in problem_of(condition=pgtrigger.Q(new__name="a"))
    assert "with $$" in problem_of(condition=pgtrigger.Condition("'$$' = ''"))


def test_what_is_none_has_no_trigger():
    assert [trigger.of for trigger in capture("accounts", created=None)] == ["updated", "deleted"]
    assert capture("accounts", created=None, updated=None, deleted=None) == []


@pytest.mark.parametrize(
    ("topic", "name"),
    [("orders", "capture_orders_created"), ("a.b", None), ("x" * 63, None)],
)
def test_names_of_triggers_are_short_and_those_of_different_topics_differ(topic, name):
    [trigger, *_] = capture(topic)
    assert name is None or trigger.name == name
    assert len(trigger.name) <= 47
    assert trigger.name != capture("a_b")[0].name or topic == "a_b"
    assert capture(topic, name="mine")[0].name == "mine_created"


def test_the_check_finds_topics_that_are_not_there(monkeypatch):
    from django_events.checks.publishers import check_captures

    assert list(check_captures()) == []
    wrong = capture("acounts", fields=["x"])
    monkeypatch.setattr(pgtrigger, "registered", lambda: [(Account, one) for one in wrong])
    found = list(check_captures())

    assert [(error.id, error.obj) for error in found] == [("django_events.E011", Account)] * 2, "once for all triggers"
    assert found[1].hint == "Did you mean 'accounts'?"


@pytest.mark.slow
@rolled_back
def test_makemigrations_sees_changes(capsys):
    call_command("makemigrations", "publishing_app", check=True, dry_run=True, verbosity=0)
    [trigger] = [
        one
        for model, one in pgtrigger.registered()
        if model is Account and isinstance(one, Capture) and one.of == "updated"
    ]
    with pytest.raises(SystemExit):
        object.__setattr__(trigger.declared, "mask", ("iban", "note"))
        try:
            call_command("makemigrations", "publishing_app", check=True, dry_run=True)
        finally:
            object.__setattr__(trigger.declared, "mask", ("iban",))
    assert "capture_accounts_updated on model account" in capsys.readouterr().out
