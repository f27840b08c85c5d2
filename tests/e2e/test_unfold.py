"""Our pages with the theme django-unfold, in a site of its own."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psycopg
import pytest

from testproject.private_postgres.server import choose_free_port
from tests.e2e.pictures import picture
from tests.e2e.screens import DESKTOP, PHONE_DARK, Screen
from tests.support.processes import Processes, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long

PASSWORD = "correct horse battery staple"


@pytest.fixture
def settings_module() -> str:
    if find_spec("unfold") is None:
        pytest.skip("needs the theme django-unfold: pip install django-unfold")
    return "tests.support.unfold_site"


@pytest.fixture
def site(processes: Processes) -> Iterator[str]:
    """The address of a shop with the theme, a user, a paused consumer and a dead letter."""
    processes.variables |= {"DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    made = processes.run("createsuperuser", "--noinput", "--username", "olga", "--email", "olga@example.com")
    assert made.returncode == 0, made.stderr
    with psycopg.connect(processes.url) as connection:
        connection.execute("SELECT django_events_publish('orders', '{\"n\": 1}'::jsonb, 'order.placed', '7')")
    assert processes.run("run_transfer", "--once").returncode == 0
    skipped = processes.run("events", "skip", "billing", "orders/1", "--reason", "a test", "--execute")
    assert skipped.returncode == 0, skipped.stderr
    assert processes.run("events", "pause", "search").returncode == 0
    port = choose_free_port()
    processes.start("runserver", f"127.0.0.1:{port}", "--noreload", "--skip-checks")
    address = f"http://127.0.0.1:{port}"
    processes.wait_until(lambda: _answers(f"{address}/admin/login/"), what="an answer of the site")
    yield address


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:  # ours
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("screen", [DESKTOP, PHONE_DARK], ids=str)
def test_pages_name_what_they_are_about_and_can_be_used(browser: "Browser", site: str, screen: Screen) -> None:
    context = browser.new_context(base_url=site, **screen.options())
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto("/admin/")
    page.locator("input[name=username]").fill("olga")
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("button[type=submit]").first.click()
    page.wait_for_url("**/admin/")
    try:
        for name, address, heading in (
            ("overview", "overview/", "Overview"),
            ("workers", "overview/workers/", "Workers"),
            ("consumers", "consumer/", "Consumers"),
            ("consumer", "consumer/go/billing/", "billing of orders"),
            ("errors", "deadletter/errors/", "Dead letters by error"),
            ("log", "topic/go/orders/1", "orders/1"),
        ):
            answer = page.goto(f"/admin/django_events/{address}")
            assert answer is not None and answer.status == 200, name
            assert page.locator("#content h1").inner_text() == heading
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            assert unstyled(page) == [], name
            picture(page, f"unfold-{name}-{screen}")
        page.goto("/admin/django_events/consumer/go/billing/")
        page.get_by_role("link", name="Rewind…").click()
        assert page.locator("#content h1").inner_text() == "Rewind: billing of orders"
        page.get_by_label("Go on at").select_option("beginning")
        page.get_by_role("button", name="Show what would happen").click()
        assert unstyled(page) == []
        picture(page, f"unfold-rewind-{screen}")
        redrive(page, screen)
    finally:
        context.close()


def redrive(page: "Page", screen: Screen) -> None:
    """A bulk action, from the list to the page that says that it is done."""
    page.goto("/admin/django_events/deadletter/")
    page.locator("input[name=_selected_action]").first.check()
    page.locator("select[name=action]").select_option("redrive")
    picture(page, f"unfold-dead-letters-{screen}")
    page.get_by_role("button", name=re.compile("Run|Go")).click()
    assert "Redrive" in page.locator("#content h1").inner_text()
    picture(page, f"unfold-redrive-{screen}")
    page.get_by_label("Reason").fill("the fix is out")
    page.get_by_role("button", name="Redrive", exact=True).click()
    wait_until(lambda: "is handled again" in page.content(), what="the message")


def unstyled(page: "Page") -> list[str]:
    """Buttons, links, inputs and cells of ours that look like text."""
    found: list[str] = page.evaluate(
        """() => {
            const style = one => getComputedStyle(one);
            const flat = one => style(one).borderTopWidth === "0px";
            const bare = one => flat(one) && style(one).backgroundColor === "rgba(0, 0, 0, 0)";
            const found = which => [...document.querySelectorAll(`.events-body ${which}`)];
            const all = which => found(which).filter(one => one.offsetParent);
            return [
                ...all(".button").filter(bare),
                ...all("input:not([type=hidden]), select").filter(flat),
                ...all(".events-table td, .events-table th").filter(one => parseFloat(style(one).paddingLeft) < 4),
                ...all("a:not(.button)").filter(one => style(one).color === style(one.parentElement).color),
            ].map(one => one.outerHTML.slice(0, 120));
        }"""
    )
    return found
