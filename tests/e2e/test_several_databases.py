"""The overview where there are several databases, of which one gives no answer."""

import socket
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from django_events.admin import summaries
from tests.e2e.conftest import Login
from tests.e2e.people import superuser
from tests.e2e.pictures import picture
from tests.e2e.screens import on_every_screen
from tests.support.fix_database import login as alias_settings

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
@pytest.mark.requirement("E11")
@on_every_screen
@pytest.mark.few(1)
def test_each_database_has_a_line_and_one_that_is_away_says_so(
    archive: str, page: "Page", login: Login, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.setattr(summaries, "SECONDS", 2)
    login(page, superuser())
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        away = {"HOST": "127.0.0.1", "PORT": str(frozen.getsockname()[1])}
        monkeypatch.setitem(connections.settings, "west", alias_settings(**away))
        page.goto("/admin/django_events/overview/")
        table = page.get_by_role("region", name="Databases")
        assert table.get_by_role("row").count() == 4
        assert table.get_by_text("The database “west” can't be reached.").is_visible()
        assert table.get_by_role("link", name="archive").get_attribute("href").endswith("?database=archive")
        picture(page, f"several-databases-{request.node.callspec.id}")
