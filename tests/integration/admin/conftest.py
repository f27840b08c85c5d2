"""The admin as a member of the staff sees it who has some of its permissions."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_events import declarations
from django_events.models import Consumer, Topic

SignIn = Callable[..., Client]


@pytest.fixture
def sign_in(request: pytest.FixtureRequest) -> SignIn:
    """A client of a member of the staff with these permissions; of one who may do everything, if none are said."""
    if "transactional_db" not in request.fixturenames:  # asked for along with it, `db` flushes all tables
        request.getfixturevalue("db")

    def make(*permissions: str, name: str = "olga") -> Client:
        user = User.objects.create_user(name, is_staff=True, is_superuser=not permissions)
        found = Permission.objects.filter(content_type__app_label="django_events", codename__in=permissions)
        assert {one.codename for one in found} == set(permissions) - {"nothing"}
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def olga(sign_in: SignIn) -> Client:
    """Who may do everything."""
    return sign_in()


def address(model: str, row: Any, page: str = "change") -> str:
    return f"/admin/django_events/{model}/{getattr(row, 'pk', row)}/{page}/"


def topic_of(declared: declarations.DeclaredTopic) -> Topic:
    return Topic.objects.get(name=declared.name)


def consumer_of(declared: declarations.DeclaredConsumer) -> Consumer:
    return Consumer.objects.select_related("topic").get(name=declared.name)
