"""The login of the demo: new each time, gone afterwards, and never that of another user."""

from contextlib import ExitStack

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from testproject.shop import guest

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_it_lets_a_superuser_in_and_is_gone_afterwards():
    with guest.login() as password:
        user = authenticate(username="demo", password=password)
        assert user
        assert user.is_superuser
        assert user.is_staff

    assert not User.objects.exists()


def test_it_is_gone_after_an_error():
    with pytest.raises(RuntimeError), guest.login():
        raise RuntimeError

    assert not User.objects.exists()


@pytest.mark.slow
def test_the_password_is_new_each_time_and_replaces_one_that_was_left():
    with guest.login() as first:
        left = User.objects.get()
    left.is_active = False
    left.save()

    with guest.login() as second:
        assert first != second
        assert authenticate(username="demo", password=second)
        assert not authenticate(username="demo", password=first)


@pytest.mark.slow
def test_a_demo_that_ends_leaves_the_login_of_a_later_one():
    with ExitStack() as earlier:
        earlier.enter_context(guest.login())
        with guest.login() as password:
            earlier.close()

            assert authenticate(username="demo", password=password)

    assert not User.objects.exists()


@pytest.mark.slow
def test_another_user_of_that_name_is_left_alone():
    User.objects.create_user("demo", password="mine", last_name="Crat")

    with pytest.raises(CommandError, match="has a user 'demo' already"), guest.login():
        pass

    user = authenticate(username="demo", password="mine")
    assert user
    assert not user.is_superuser
