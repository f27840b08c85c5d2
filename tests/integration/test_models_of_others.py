"""Models, fields and relations that other packages made."""

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.db.models.fields.related import ManyToManyRel, RelatedField
from django.test.utils import isolate_apps

from django_events import capture, outbox
from django_events.publishing import changes
from django_events.publishing.outbox import Outbox


@pytest.fixture
def forget_outboxes():
    """What a test declares is connected for good: take it back."""
    known, publishers = list(changes.declared), dict(changes._publishers)
    yield
    changes.declared[:] = known
    changes._publishers.clear()
    changes._publishers.update(publishers)


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


@isolate_apps("tests.publishing_app")
def test_a_relation_that_is_no_many_to_many_field_is_a_message_of_check(forget_outboxes):
    class Tagged(models.Model):
        class Meta:
            app_label = "publishing_app"

    @outbox("library", m2m=["tags"])
    class Article(models.Model):
        tags = TagField(Tagged)

        class Meta:
            app_label = "publishing_app"

    changes.connect_relations()
    [publisher] = [one for one in changes.publishers() if one.model is Article]

    assert list(publisher.outbox.problems(Article)) == [
        "@outbox('library') of publishing_app.Article has 'tags' in m2m, which is a TagField and no ManyToManyField: "
        "its changes can't be told. Leave it out, and give publishing_app.Tagged an outbox or a capture() of its own."
    ]
    assert isinstance(publisher.outbox, Outbox)


@isolate_apps("tests.publishing_app")
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
