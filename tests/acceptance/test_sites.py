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
