"""`manage.py events import-beat`: what django-celery-beat has in its tables becomes declarations, which work."""

import json

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import override_settings

from django_events import declarations
from django_events.management.commands.events import Command
from django_events.models import Clock
from django_events.publishing.clocks import sync

pytestmark = pytest.mark.django_db

# As its migrations 0001 to 0019 make them, without what isn't read.
TABLES = """
CREATE TABLE django_celery_beat_crontabschedule (
    id serial PRIMARY KEY, minute varchar(240), hour varchar(96), day_of_month varchar(124), month_of_year varchar(64),
    day_of_week varchar(64), timezone varchar(63)
);
CREATE TABLE django_celery_beat_intervalschedule (id serial PRIMARY KEY, every integer, period varchar(24));
CREATE TABLE django_celery_beat_solarschedule (
    id serial PRIMARY KEY, event varchar(24), latitude numeric, longitude numeric
);
CREATE TABLE django_celery_beat_clockedschedule (id serial PRIMARY KEY, clocked_time timestamptz);
CREATE TABLE django_celery_beat_periodictask (
    id serial PRIMARY KEY, name varchar(200) UNIQUE, task varchar(200),
    args text DEFAULT '[]', kwargs text DEFAULT '{}',
    queue varchar(200), priority integer, expires timestamptz, expire_seconds integer, one_off boolean DEFAULT false,
    start_time timestamptz, enabled boolean DEFAULT true, crontab_id integer, interval_id integer, solar_id integer,
    clocked_id integer
);
"""


@pytest.fixture
def beat():
    """Adds a periodic task with one schedule."""
    with connection.cursor() as cursor:
        cursor.execute(TABLES)

    def add(name, schedule=None, **task):
        with connection.cursor() as cursor:
            if schedule is not None:
                kind, columns = schedule
                names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
                cursor.execute(
                    f"INSERT INTO django_celery_beat_{kind}schedule ({names}) VALUES ({places}) RETURNING id",
                    list(columns.values()),
                )
                task[f"{kind}_id"] = cursor.fetchone()[0]
            task = {"name": name, "task": "shop.tasks.report", **task}
            cursor.execute(
                f"INSERT INTO django_celery_beat_periodictask ({', '.join(task)})"
                f" VALUES ({', '.join(['%s'] * len(task))})",
                list(task.values()),
            )

    return add


def crontab(minute="0", hour="3", day="*", month="*", weekday="*", tz="UTC"):
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
    return "crontab", dict(zip(names, (minute, hour, day, month, weekday, tz), strict=True))


def interval(every, period):
    return "interval", {"every": every, "period": period}


def imported(capsys):
    call_command("events", "import-beat", "tasks", "--format", "json")
    return json.loads(capsys.readouterr().out)


def test_without_its_tables_it_says_so(capsys):
    with pytest.raises(CommandError, match="no tables of django-celery-beat"):
        Command().handle(subcommand="import-beat", topic="tasks", database=None, format="table")


@pytest.mark.parametrize(
    ("schedule", "cron", "tz"),
    [
        (crontab(tz="Europe/Berlin"), "0 3 * * *", "Europe/Berlin"),
        (crontab("*/5", "8-18", weekday="mon-fri"), "*/5 8-18 * * mon-fri", "UTC"),
        (crontab("[0, 30]", "*", day="1, 15"), "0,30 * 1,15 * *", "UTC"),
        (interval(1, "minutes"), "* * * * *", "UTC"),
        (interval(300, "seconds"), "*/5 * * * *", "UTC"),
        (interval(6, "hours"), "0 */6 * * *", "UTC"),
        (interval(24, "hours"), "0 0 * * *", "UTC"),
        (interval(7, "days"), "0 0 * * 0", "UTC"),
    ],
)
def test_a_schedule_that_is_a_cron_expression_is_taken(beat, capsys, schedule, cron, tz):
    beat("report", schedule, args="[1]", kwargs='{"kind": "full"}')

    [one] = imported(capsys)["taken"]
    assert (one["name"], one["type"], one["cron"], one["tz"]) == ("tasks.report", "shop.tasks.report", cron, tz)
    assert one["value"] == {"args": [1], "kwargs": {"kind": "full"}}
    assert any("last run" in note for note in one["notes"]) is (schedule[0] == "interval")


@pytest.mark.parametrize(
    ("schedule", "task", "why"),
    [
        (crontab(day="1", weekday="mon"), {}, "wants both to be met"),
        (crontab(hour="22-3x"), {}, "can't be used"),
        (crontab(tz="Middle/Earth"), {}, "no time zone"),
        (interval(7, "minutes"), {}, "doesn't divide"),
        (interval(30, "seconds"), {}, "doesn't divide"),
        (interval(90, "minutes"), {}, "doesn't divide"),
        (interval(2, "days"), {}, "doesn't divide"),
        (interval(0, "hours"), {}, "doesn't divide"),
        (interval(1, "lightyears"), {}, "can't be used"),
        (("solar", {"event": "sunrise", "latitude": 1, "longitude": 1}), {}, "follows the sun"),
        (("clocked", {"clocked_time": "2999-01-01T00:00:00Z"}), {}, "publish_at"),
        (("clocked", {"clocked_time": "2001-01-01T00:00:00Z"}), {}, "which is over"),
        (None, {}, "has no schedule"),
        (crontab(), {"enabled": False}, "disabled"),
        (crontab(), {"one_off": True}, "runs once"),
        (crontab(), {"expires": "2001-01-01T00:00:00Z"}, "expired"),
        (crontab(), {"start_time": "2999-01-01T00:00:00Z"}, "begins at"),
        (crontab(), {"kwargs": "{"}, "not JSON"),
        (crontab(), {"task": "celery.backend_cleanup"}, "Celery's own"),
    ],
)
def test_what_cannot_be_a_clock_is_said_with_the_reason(beat, capsys, schedule, task, why):
    beat("report", schedule, **task)

    found = imported(capsys)
    assert found["taken"] == [] and found["declarations"] == ""
    assert why in found["left_out"][0]["why"]


def test_the_declarations_make_clocks(beat, capsys, make_topic):
    beat(
        "it's nightly\n# no code",
        crontab(tz="Europe/Berlin"),
        kwargs='{"on": true, "of": null}',
        queue="slow",
        priority=3,
    )
    beat("often", interval(5, "minutes"), task="shop.tasks.sync", expire_seconds=30)
    beat("sun", ("solar", {"event": "sunset", "latitude": 1, "longitude": 1}))
    call_command("events", "import-beat", "tasks")
    out, err = capsys.readouterr()

    assert err == "Left out: sun (shop.tasks.report): it follows the sun (sunset), and no cron expression does.\n"
    assert "# queue 'slow' is left out" in out and "missed='skip'" in out
    make_topic("tasks")
    before = set(declarations.clocks)
    exec(compile(out, "events.py", "exec"), {})
    try:
        sync("default")
        rows = Clock.objects.order_by("name").values_list("name", "cron", "tz", "type", "value")
        assert list(rows) == [
            (
                "tasks.it's nightly\n# no code", "0 3 * * *", "Europe/Berlin", "shop.tasks.report",
                {"args": [], "kwargs": {"on": True, "of": None}},
            ),
            ("tasks.often", "*/5 * * * *", "UTC", "shop.tasks.sync", {"args": [], "kwargs": {}}),
        ]  # fmt: skip
    finally:
        for clock in set(declarations.clocks) - before:
            declarations.clocks.discard(clock)


def test_masked_fields_are_not_printed(beat, capsys):
    beat("report", crontab(), kwargs='{"token": "s3cret"}')
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["token"]}):
        call_command("events", "import-beat", "tasks")

    told = capsys.readouterr().out
    assert "s3cret" not in told and "fill them in" in told
