"""A browser, a live server, and pages between them that are watched."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from tests.e2e import people
from tests.e2e.chromium import HOST, chromium, program
from tests.e2e.guard import Guard
from tests.e2e.screens import DESKTOP, Screen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
Login = Callable[["Page", User], None]


@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    """One browser for all tests of this folder; it ends before others begin, whose code may be async."""
    with chromium(program()) as started:
        yield started
        connections.close_all()  # what tests opened while a loop of Playwright runs, no code sees afterwards


@pytest.fixture(scope="package")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """pytest-django's live server, which takes its middleware when it starts: all pages have the strict policy."""
    with override_settings(
        MIDDLEWARE=["tests.e2e.csp.strict", *settings.MIDDLEWARE],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],  # for speed
    ):
        server = LiveServer(HOST)
        yield server
        server.stop()


@pytest.fixture
def transactional_db(transactional_db: None) -> Iterator[None]:
    """What the live server sees is committed. Nothing is flushed, so what people leave is deleted here."""
    yield
    for model in (LogEntry, Session, User, Group):
        model.objects.all().delete()


@pytest.fixture
def guard(live_server: LiveServer) -> Guard:
    """What the test's pages did that no test expected."""
    return Guard(live_server.url)


@pytest.fixture
def open_page(browser: "Browser", live_server: LiveServer, transactional_db: None, guard: Guard) -> Iterator[OpenPage]:
    """Open pages, each in a browser context of its own: open_page(PHONE_DARK). The guard checks them in the end."""
    contexts = []

    def open_one(screen: Screen = DESKTOP) -> "Page":
        context = browser.new_context(base_url=live_server.url, service_workers="block", **screen.options())
        contexts.append(context)
        context.set_default_timeout(15_000)
        guard.watch(context)
        return context.new_page()

    yield open_one
    try:
        guard.check()
    finally:
        for context in contexts:
            context.close()


@pytest.fixture
def page(open_page: OpenPage, request: pytest.FixtureRequest) -> "Page":
    """A page on a desktop, or with @on_every_screen on each of them."""
    return open_page(getattr(request, "param", DESKTOP))


@pytest.fixture
def login(live_server: LiveServer) -> Login:
    """login(page, user): give the page's browser the session of a user, without the form."""

    def enter(page: "Page", user: User) -> None:
        people.login(page, user, live_server.url)

    return enter
