"""Models, fields and relations that other packages made."""

from unittest.mock import ANY

import pytest
from django.contrib.auth.models import Group, User, update_last_login
from django.db import connection
from django.test.utils import isolate_apps

from django_events import capture, outbox, suppress
from django_events.publishing import model_signals
from django_events.testing import published


@pytest.fixture
def forget_outboxes():
    """What a test declares is connected for good: take it back."""
    known, publishers = list(model_signals.declared), dict(model_signals._publishers)
    yield
    model_signals.declared[:] = known
    model_signals._publishers.clear()
    model_signals._publishers.update(publishers)


@isolate_apps("tests.support.publishing_app")
def test_events_of_a_captured_proxy_have_the_name_of_its_model():
    class CapturedUser(User):
        class Meta:
            proxy = True
            app_label = "publishing_app"

    class CapturedMembership(User.groups.through):
        class Meta:
            proxy = True
            app_label = "publishing_app"

    [created, _, deleted] = capture("users")

    assert "'user.created'" in created.get_func(CapturedUser)
    assert "'user.deleted'" in deleted.get_func(CapturedUser)
    assert "'user_groups.created'" in created.get_func(CapturedMembership)


def install(model, triggers):
    with connection.cursor() as cursor:
        for trigger in triggers:
            cursor.execute(trigger.compile(model).install_sql)


def told(topic):
    return [(event.type, event.key, event.value) for event in published(topic)]


@pytest.mark.django_db
def test_users_by_an_outbox(forget_outboxes):
    fields = ["username", "is_active", "is_staff"]
    outbox("library", fields=fields)(User)

    ada = User.objects.create_user("ada", password="a secret")
    update_last_login(None, ada)
    ada.is_staff = True
    ada.save()
    ada.delete()

    shown = {"username": "ada", "is_active": True, "is_staff": False}
    staff = {**shown, "is_staff": True}
    assert [(kind, value) for kind, _, value in told("library")] == [
        ("user.created", shown),
        ("user.updated", shown),
        ("user.updated", staff),
        ("user.deleted", staff),
    ]


@pytest.mark.django_db
@isolate_apps("tests.support.publishing_app")
def test_users_and_their_groups_by_proxies():
    class CapturedUser(User):
        class Meta:
            proxy = True
            app_label = "publishing_app"

    class CapturedMembership(User.groups.through):
        class Meta:
            proxy = True
            app_label = "publishing_app"

    install(CapturedUser, capture("accounts", fields=["id", "username"]))
    joined = capture("accounts", key="user_id", created="user.joined", updated=None, deleted="user.left")
    install(CapturedMembership, joined)

    User.objects.bulk_create([User(username="ada")])
    ada = User.objects.get()
    editors = Group.objects.create(name="editors")
    ada.groups.add(editors)
    editors.delete()
    User.objects.update(username="grace")
    with suppress(User):
        User.objects.update(username="stranger")

    row = {"id": ANY, "user_id": ada.pk, "group_id": ANY}
    changed = {"username": {"old": "ada", "new": "grace"}}
    assert told("accounts") == [
        ("user.created", str(ada.pk), {"id": ada.pk, "username": "ada"}),
        ("user.joined", str(ada.pk), row),
        ("user.left", str(ada.pk), row),
        ("user.updated", str(ada.pk), {"id": ada.pk, "username": "grace", "changed": changed}),
    ]
