"""A browser reads its own writes: a cookie remembers until where it has written, and the next page waits for that."""

import asyncio
from datetime import timedelta
from unittest.mock import ANY

import pytest
from asgiref.sync import sync_to_async
from django.core import signing
from django.db import OperationalError, connections, transaction
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_events import apublish, models, publish, reads_own_writes
from django_events.deriving.own_writes import COOKIE, SALT
from django_events.exceptions import Invalid, NotReady, UnknownName
from django_events.middleware import RememberWrites
from django_events.operations import pause
from tests.support.fix_consumers import run_once
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X12")]

SHORT = timedelta(milliseconds=20)


def ignore(event):
    """A handler that does nothing."""


def write(request):
    publish("things", 1)
    return HttpResponse("written")


@reads_own_writes("reader", timeout=SHORT)
def page(request):
    return HttpResponse("fresh" if request.reads_own_writes else "stale")


class Browser:
    """Requests through the middleware, as Django calls it, with the cookies that it answers with."""

    def __init__(self, middleware=RememberWrites):
        self.middleware = middleware
        self.cookies = {}

    def call(self, view, method="get", **extra):
        request = getattr(RequestFactory(), method)("/", **extra)
        request.COOKIES = self.cookies

        def respond(request):
            if (early := around.process_view(request, view, (), {})) is not None:
                return early
            return view(request)

        around = self.middleware(respond)
        response = around(request)
        self.cookies |= {name: morsel.value for name, morsel in response.cookies.items()}
        return response.content.decode()


@pytest.fixture
def browser(things, make_consumer):
    make_consumer(things, handler=ignore)
    return Browser()


def test_the_page_after_a_write_waits_for_it(browser, make_consumer, things):
    assert browser.call(page) == "fresh"
    assert browser.call(write, "post") == "written"
    assert browser.call(page) == "stale"
    transfer_all()
    assert browser.call(page) == "stale"
    run_once(make_consumer(things, handler=ignore))
    assert browser.call(page) == "fresh"


def test_what_others_write_afterwards_is_not_waited_for_in_the_buffer(browser, make_consumer, things):
    browser.call(write, "post")
    transfer_all()
    run_once(make_consumer(things, handler=ignore))
    publish(things, "another's")
    assert browser.call(page) == "fresh"


def test_triggers_and_bulk_are_remembered_too(browser):
    """No receipt is needed: what is remembered is the last ticket of the database."""

    def write_by_sql(request):
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT django_events_publish('things', '1')")
        return HttpResponse("written")

    browser.call(write_by_sql, "post")
    assert browser.call(page) == "stale"


def test_a_request_that_reads_leaves_no_cookie(browser):
    browser.call(page)
    browser.call(write, "get")
    assert browser.cookies == {}


def test_a_subclass_may_say_what_writes(things, make_consumer):
    class Always(RememberWrites):
        def writes(self, request, response):
            return True

    make_consumer(things, handler=ignore)
    browser = Browser(Always)
    browser.call(write, "get")
    assert browser.call(page) == "stale"


def test_the_cookie_is_signed_and_ends(browser):
    browser.call(write, "post")
    real = browser.cookies[COOKIE]
    assert signing.loads(real, salt=SALT) == {"default": ANY}
    for made_up in (real[:-1] + "x", "", "nonsense", signing.dumps({"default": 10**9}, salt="another")):
        browser.cookies[COOKIE] = made_up
        assert browser.call(page) == "fresh"

    class Forgetful(RememberWrites):
        remembered = timedelta(seconds=-1)

    browser.cookies[COOKIE] = real
    browser.middleware = Forgetful
    assert browser.call(page) == "fresh"


def test_the_cookie_of_a_database_that_is_gone_means_nothing(browser):
    browser.cookies[COOKIE] = signing.dumps({"gone": 5}, salt=SALT)
    assert browser.call(page) == "fresh"


def test_the_cookie_is_for_this_site_alone(things, make_consumer):
    make_consumer(things, handler=ignore)
    for secure in (False, True):
        request = RequestFactory().post("/", secure=secure)
        response = RememberWrites(write)(request)
        cookie = response.cookies[COOKIE]
        assert (cookie["httponly"], cookie["samesite"], cookie["max-age"]) == (True, "Lax", 60)
        assert bool(cookie["secure"]) is secure


def test_a_page_of_a_paused_consumer_does_not_wait(browser, make_consumer, things):
    reader = make_consumer(things, handler=ignore)
    browser.call(write, "post")
    transfer_all()
    pause(reader)

    @reads_own_writes("reader", timeout=timedelta(hours=1))
    def patient(request):
        return HttpResponse("fresh" if request.reads_own_writes else "stale")

    assert browser.call(patient) == "stale"


def test_in_a_transaction_a_page_looks_and_does_not_wait(browser, make_consumer, things):
    """As in a TestCase, where drain() has handled all."""
    reader = make_consumer(things, handler=ignore)

    @reads_own_writes("reader", timeout=timedelta(hours=1))
    def patient(request):
        return HttpResponse("fresh" if request.reads_own_writes else "stale")

    with transaction.atomic():
        browser.call(write, "post")
        assert browser.call(patient) == "stale"
    transfer_all()
    run_once(reader)
    with transaction.atomic():
        assert browser.call(patient) == "fresh"


def test_a_view_without_the_middleware_says_so(things):
    with pytest.raises(NotReady, match=r"add 'django_events\.middleware\.RememberWrites' to MIDDLEWARE"):
        page(RequestFactory().get("/"))
    with pytest.raises(Invalid, match="Name the consumers"):
        reads_own_writes()
    with pytest.raises(Invalid, match="Name the consumers"):
        reads_own_writes(page)


def test_an_unknown_consumer_is_said_when_there_is_something_to_wait_for(browser):
    @reads_own_writes("raeder")
    def misspelt(request):
        return HttpResponse("fresh")

    browser.call(write, "post")
    with pytest.raises(UnknownName, match="Did you mean 'reader'"):
        browser.call(misspelt)


def test_a_class_of_views_is_decorated_by_its_dispatch(browser):
    @method_decorator(reads_own_writes("reader", timeout=SHORT), name="dispatch")
    class Page(View):
        def get(self, request):
            return HttpResponse("fresh" if request.reads_own_writes else "stale")

    browser.call(write, "post")
    assert browser.call(Page.as_view()) == "stale"


def test_an_answer_is_not_lost_when_the_database_is_gone(browser, caplog, monkeypatch):
    def broken(using):
        raise OperationalError("gone")

    monkeypatch.setattr("django_events.deriving.own_writes.last_ticket", broken)
    assert browser.call(write, "post") == "written"
    assert browser.cookies == {}


def test_an_answer_is_not_lost_where_the_role_may_not_know_the_last_ticket(browser, caplog):
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE ROLE writes_without_rights")
        try:

            def write_elsewhere(request):
                cursor.execute("SET ROLE writes_without_rights")
                return HttpResponse("written")

            assert browser.call(write_elsewhere, "post") == "written"
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP ROLE writes_without_rights")
    assert browser.cookies == {}
    assert "can't be remembered. The role" in caplog.text


def test_async_views_are_waited_for_too(things, make_consumer):
    reader = make_consumer(things, handler=ignore)

    @reads_own_writes("reader", timeout=SHORT)
    async def async_page(request):
        return HttpResponse("fresh" if request.reads_own_writes else "stale")

    async def call(view, method, cookies):
        request = getattr(AsyncRequestFactory(), method)("/")
        request.COOKIES = cookies

        async def respond(request):
            await around.process_view(request, view, (), {})
            return await view(request)

        around = RememberWrites(respond)
        try:
            return await around(request)
        finally:
            await sync_to_async(connections.close_all)()

    async def async_write(request):
        await apublish("things", 1)
        return HttpResponse("written")

    async def story():
        response = await call(async_write, "post", {})
        cookies = {COOKIE: response.cookies[COOKIE].value}
        return cookies, (await call(async_page, "get", cookies)).content

    cookies, content = asyncio.run(story())
    assert content == b"stale"
    transfer_all()
    run_once(reader)
    assert asyncio.run(call(async_page, "get", cookies)).content == b"fresh"
    assert models.Event.objects.of(things).count() == 1
