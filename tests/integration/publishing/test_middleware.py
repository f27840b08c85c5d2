"""Every event of a request says of which user and of which request it came."""

import asyncio
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory

from django_events import apublish, publish
from django_events.middleware import describe_events
from django_events.models import BufferedEvent

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def ada():
    user = User.objects.create_user("ada")
    yield user
    user.delete()


def metadata():
    return [row.metadata for row in BufferedEvent.objects.order_by("id")]


def asked(user=None, request_id=None):
    request = RequestFactory().get("/", **({"HTTP_X_REQUEST_ID": request_id} if request_id is not None else {}))
    if user is not None:
        request.user = user

    def view(request):
        publish("things", 1)
        return HttpResponse("done")

    return describe_events(view)(request)


def test_an_event_says_who_and_which_request(things, ada):
    assert asked(ada, "req-1").content == b"done"
    publish(things, "of no request")

    assert metadata() == [{"user": ada.pk, "request": "req-1"}, {}]


def test_a_request_without_an_id_gets_one(things):
    asked(AnonymousUser())
    asked(AnonymousUser())

    (first, second) = metadata()
    assert first["user"] is None
    assert UUID(first["request"]) != UUID(second["request"])


def test_without_users_there_is_no_user(things):
    asked(request_id="req-1")
    assert metadata() == [{"request": "req-1"}]


@pytest.mark.parametrize("hostile", ["", "a b", "x" * 201, "\x00", "é", "a\nb"])
def test_an_id_that_no_proxy_would_make_is_not_taken_over(things, hostile):
    asked(request_id=hostile)
    [said] = metadata()
    assert UUID(said["request"])


def test_a_user_whose_key_is_no_number_is_said_as_text(things):
    class Guest:
        pk = UUID(int=7)

    asked(Guest())
    assert metadata()[0]["user"] == str(UUID(int=7))


def test_a_page_that_publishes_nothing_asks_for_no_user(things):
    class Unasked:
        @property
        def pk(self):
            raise AssertionError("it was asked")

    request = RequestFactory().get("/")
    request.user = Unasked()
    assert describe_events(lambda request: HttpResponse("read"))(request).content == b"read"


def test_an_async_view_has_it_too(things, ada):
    async def view(request):
        await apublish("things", 1)
        await sync_to_async(publish)("things", 2)
        await sync_to_async(connections.close_all)()
        return HttpResponse("done")

    request = AsyncRequestFactory().get("/", headers={"X-Request-ID": "req-2"})
    request.user = ada
    assert asyncio.run(describe_events(view)(request)).content == b"done"

    assert metadata() == [{"user": ada.pk, "request": "req-2"}] * 2


def test_an_error_of_a_view_ends_the_block(things):
    def view(request):
        raise ValueError("of the view")

    with pytest.raises(ValueError, match="of the view"):
        describe_events(view)(RequestFactory().get("/"))
    publish(things, 1)
    assert metadata() == [{}]
