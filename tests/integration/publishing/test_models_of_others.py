"""Models, fields and relations that other packages made."""

from unittest.mock import ANY

import pytest
from django.contrib.auth.models import Group, User, update_last_login
from django.db import connection, models
from django.db.models.fields.related import ManyToManyRel, RelatedField
from django.test.utils import isolate_apps

from django_events import capture, outbox, suppress
from django_events.publishing import model_signals
from django_events.publishing.outbox import Outbox
from django_events.testing import published


@pytest.fixture
def forget_outboxes():
    """What a test declares is connected for good: take it back."""
    known, publishers = list(model_signals.declared), dict(model_signals._publishers)
    yield
    for one in set(model_signals.declared) - set(known):
        for name in ("save_base", "_save_table", model_signals._WRAPPED):
            delattr(one.model, name)
    model_signals.declared[:] = known
    model_signals._publishers.clear()
    model_signals._publishers.update(publishers)


class TagField(RelatedField):
    """A relation like that of django-taggit: Django lists it with the many-to-many fields, and it isn't one."""

    many_to_many = True
    many_to_one = one_to_many = one_to_one = False

    def __init__(self, through):
        super().__init__(rel=ManyToManyRel(self, None, through=through), null=True, serialize=False)

    def contribute_to_class(self, cls, name, **kwargs):
        self.set_attributes_from_name(name)
        self.model = cls
        self.opts = cls._meta
        cls._meta.add_field(self)


@isolate_apps("tests.support.publishing_app")
def test_a_relation_that_is_no_many_to_many_field_is_a_message_of_check(forget_outboxes):
    class Tagged(models.Model):
        class Meta:
            app_label = "publishing_app"

    @outbox("library", m2m=["tags"])
    class Article(models.Model):
        tags = TagField(Tagged)

        class Meta:
            app_label = "publishing_app"

    model_signals.connect_relations()
    [publisher] = [one for one in model_signals.publishers() if one.model is Article]

    assert list(publisher.outbox.problems(Article)) == [
        "@outbox('library') of publishing_app.Article has 'tags' in m2m, which is a TagField and no ManyToManyField: "
        "its changes can't be told. Leave it out, and give publishing_app.Tagged an outbox or a capture() of its own."
    ]
    assert isinstance(publisher.outbox, Outbox)


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
def test_users_and_their_groups_by_an_outbox(forget_outboxes):
    fields = ["username", "is_active", "is_staff"]
    outbox("library", fields=fields, watch=["is_active", "is_staff"], m2m=["groups"])(User)
    model_signals.connect_relations()
    editors = Group.objects.create(name="editors")

    ada = User.objects.create_user("ada", password="a secret")
    update_last_login(None, ada)
    ada.is_staff = True
    ada.save()
    editors.user_set.add(ada)
    ada.delete()

    shown = {"username": "ada", "is_active": True, "is_staff": False}
    staff = {**shown, "is_staff": True}
    assert [(kind, value) for kind, _, value in told("library")] == [
        ("user.created", shown),
        ("user.updated", {**staff, "changed": {"is_staff": {"old": False, "new": True}}}),
        ("user.updated", {**staff, "changed": {"groups": {"added": [editors.pk]}}}),
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
        User.objects.update(username="nobody")

    row = {"id": ANY, "user_id": ada.pk, "group_id": ANY}
    changed = {"username": {"old": "ada", "new": "grace"}}
    assert told("accounts") == [
        ("user.created", str(ada.pk), {"id": ada.pk, "username": "ada"}),
        ("user.joined", str(ada.pk), row),
        ("user.left", str(ada.pk), row),
        ("user.updated", str(ada.pk), {"id": ada.pk, "username": "grace", "changed": changed}),
    ]
