"""Sites as other people build them: without the admin, without migrations in tests, with apps in another order."""

import pytest

PUBLISH_AND_TRANSFER = """
from django.core.management import call_command
from django_events import publish
from django_events.models import Event

publish("notes", {"text": "hello"})
call_command("run_transfer", once=True, verbosity=0)
print(json.dumps([event.value for event in Event.objects.since("notes")]))
"""


def test_a_site_needs_no_admin(site):
    """Django imports the template tags of every app as soon as an engine is looked at."""
    for command in (["check"], ["migrate", "-v0"], ["check", "--deploy", "--database", "default"]):
        done = site.manage(*command)
        assert done.returncode == 0, done.stderr
    assert site.python(PUBLISH_AND_TRANSFER) == [{"text": "hello"}]


def test_template_tags_bring_no_admin_along(site):
    names = """
    import sys
    from django.template import engines

    engines["django"].from_string("{% load django_events_admin %}{{ 12000|number }}").render({})
    print(json.dumps([n for n in sys.modules if n.startswith(("django.contrib.admin", "django_events.admin"))]))
    """

    assert site.python(names) == []


def test_rendering_registers_nothing_where_the_admin_discovers_nothing(site):
    site.settings(
        """
        INSTALLED_APPS = [
            "django.contrib.admin.apps.SimpleAdminConfig", "django.contrib.auth", "django.contrib.contenttypes",
            "django.contrib.messages", "django.contrib.sessions", *INSTALLED_APPS,
        ]
        """
    )

    registered = """
    from django.contrib import admin
    from django.template import engines

    engines["django"].from_string("{% load django_events_admin %}{{ 12000|number }}").render({})
    print(json.dumps([model._meta.label for model in admin.site._registry]))
    """

    assert site.python(registered) == []


BOTH_WAYS = """
from django.db import models
from django_events import capture, outbox


@outbox("notes", created="outbox", updated=None, deleted=None)
class Thing(models.Model):
    big = models.PositiveBigIntegerField(default=3)
    at = models.DateTimeField(null=True)

    class Meta:
        triggers = capture("notes", created="capture", updated=None, deleted=None)
"""
VALUES = """
print(json.dumps([(v["big"], v["at"]) for v in BufferedEvent.objects.using(using).values_list("value", flat=True)]))
"""


def test_capture_knows_columns_where_the_default_database_is_another_one(site):
    """Types of columns are those of PostgreSQL, where the triggers are."""
    site.settings(
        """
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "events": database()}
        DATABASE_ROUTERS = ["board.routers.Router"]
        """
    )
    site.write(
        "board/routers.py",
        """
        class Router:
            def db_for_read(self, model, **hints):
                return "events"

            db_for_write = db_for_read

            def allow_migrate(self, db, app_label, **hints):
                return db == "events"
        """,
    )
    site.write("board/models.py", BOTH_WAYS)
    site.write("board/migrations/__init__.py", "")
    for command in (["makemigrations", "-v0"], ["migrate", "--database", "events", "-v0"], ["check"]):
        done = site.manage(*command)
        assert done.returncode == 0, done.stderr

    script = f"""
    from board.models import Thing
    from django_events.models import BufferedEvent
    using = "events"

    Thing.objects.create()
    {VALUES.strip()}
    """

    assert site.python(script) == [[3, None], [3, None]]


def test_a_time_without_a_zone_is_the_moment_that_the_database_keeps(site):
    """The hour that the clocks go through twice, and the one that they leave out."""
    site.settings('USE_TZ, TIME_ZONE = False, "Europe/Berlin"')
    site.write("board/models.py", BOTH_WAYS)
    site.write("board/migrations/__init__.py", "")
    for command in (["makemigrations", "-v0"], ["migrate", "-v0"]):
        done = site.manage(*command)
        assert done.returncode == 0, done.stderr

    script = f"""
    from datetime import datetime
    from board.models import Thing
    from django_events.models import BufferedEvent
    using = "default"

    for moment in [(2026, 10, 25, 2, 30), (2026, 3, 29, 2, 30), (2026, 7, 1, 12)]:
        Thing.objects.create(at=datetime(*moment))
    {VALUES.strip()}
    """

    moments = ["2026-10-25T01:30:00.000000Z", "2026-03-29T01:30:00.000000Z", "2026-07-01T10:00:00.000000Z"]
    assert [at for _, at in site.python(script)] == [moment for moment in moments for _ in range(2)]
