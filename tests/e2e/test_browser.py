"""The admin opens in a real browser, and what goes wrong in one is noticed."""

import asyncio
import os
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from tests.e2e import chromium
from tests.e2e.people import PASSWORD, superuser, viewer
from tests.e2e.pictures import picture
from tests.e2e.screens import PHONE, PHONE_DARK, on_every_screen
from tests.support.processes import wait_until


def fill_in(page, name, password):
    page.goto("/admin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


@pytest.mark.slow
def test_the_form_logs_in(page):
    superuser("ada")

    fill_in(page, "ada", PASSWORD)

    page.wait_for_url("**/admin/")
    assert page.get_by_role("heading", name="Site administration").is_visible()
    assert page.locator("#user-tools").get_by_text("ada").is_visible()


@pytest.mark.slow
def test_a_wrong_password_is_refused(page):
    superuser("ada")

    fill_in(page, "ada", "a wrong one")

    assert page.get_by_text("Please enter the correct username and password").is_visible()
    assert not page.locator("#user-tools").is_visible()


@pytest.mark.slow
@on_every_screen
@pytest.mark.few(1)
def test_the_index_shows_on_every_screen(page, login):
    login(page, superuser())

    page.goto("/admin/")

    assert page.get_by_role("link", name="Users").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the screen"


@pytest.mark.slow
def test_a_viewer_sees_what_is_permitted(page, login):
    login(page, viewer("auth.view_group"))

    page.goto("/admin/")

    assert page.get_by_role("link", name="Groups").is_visible()
    assert not page.get_by_role("link", name="Users").is_visible()


@pytest.mark.slow
def test_a_refusal_is_expected_by_name(page, login, guard):
    login(page, viewer("auth.view_group"))
    guard.expect("403 (Forbidden)")

    response = page.goto("/admin/auth/user/")

    assert response.status == 403


@pytest.mark.slow
def test_a_screen_is_what_it_says(open_page, login):
    page = open_page(PHONE_DARK)
    login(page, superuser())
    page.goto("/admin/")

    facts = page.evaluate("[innerWidth, innerHeight, devicePixelRatio, navigator.maxTouchPoints > 0]")
    assert facts == [360, 740, 2, True]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.slow
def test_a_picture_is_as_large_as_the_screen(open_page, tmp_path, monkeypatch):
    page = open_page(PHONE)
    page.goto("/admin/")
    monkeypatch.delenv("PICTURES", raising=False)
    picture(page, "login")
    assert not list(tmp_path.iterdir())

    monkeypatch.setenv("PICTURES", str(tmp_path / "images"))
    picture(page, "login")

    header = (tmp_path / "images/login.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(header[16:20]), int.from_bytes(header[20:24])] == [720, 1480]


@pytest.mark.slow
def test_pages_have_the_strict_policy(page, guard):
    response = page.goto("/admin/login/")
    assert response.headers["content-security-policy"].startswith("default-src 'none';")
    guard.expect("Content Security Policy")

    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = true'}))")

    assert page.evaluate("window.ran") is None


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("console.error('too bad')", "console error: too bad"),
        ("console.warn('take care')", "console warning: take care"),
        ("setTimeout(() => { throw new Error('boom') })", "error in a page: boom"),
    ],
)
@pytest.mark.few(1)
def test_the_guard_notices_a_message(page, guard, script, problem):
    page.goto("/admin/login/")
    page.evaluate(script)

    with pytest.raises(AssertionError, match=problem):
        guard.check()
    guard.expect(problem)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["http://example.com/a.png", "http://192.0.2.1/a.png"])
def test_the_guard_notices_a_request_to_a_stranger_which_does_not_arrive(page, guard, address):
    page.set_content(f"<img src={address}>")

    with pytest.raises(AssertionError, match=f"request to a stranger: {address}"):
        guard.check()
    for problem in ["to a stranger", "failed: GET", "console error"]:
        guard.expect(problem)


@pytest.mark.slow
def test_the_guard_notices_a_stranger_that_answers(page, guard):
    """A route answers in its place, so nothing fails but the guard."""
    page.route("http://example.com/**", lambda route: route.fulfill(body="fine"))
    page.set_content("<iframe src=http://example.com/a></iframe>")

    with pytest.raises(AssertionError) as told:
        guard.check()
    assert str(told.value).splitlines()[1:] == ["request to a stranger: http://example.com/a"]
    guard.expect("http://example.com/a")


@pytest.mark.slow
def test_the_guard_notices_what_is_missing_on_the_server(page, guard):
    page.goto("/admin/login/")
    page.evaluate("document.body.append(Object.assign(new Image(), {src: '/nothing.png'}))")

    with pytest.raises(AssertionError, match=r"404 \(Not Found\)"):
        guard.check()
    guard.expect("404 (Not Found)")


@pytest.mark.slow
def test_the_guard_wants_what_was_expected(page, guard):
    page.goto("/admin/login/")
    guard.expect("something that never comes")

    with pytest.raises(AssertionError, match="expected and not seen: something that never comes"):
        guard.check()
    page.evaluate("console.error('something that never comes')")


@pytest.mark.slow
def test_an_excuse_is_for_one_problem(page, guard):
    page.goto("/admin/login/")
    guard.expect("again")
    page.evaluate("console.error('again'); console.error('again')")

    with pytest.raises(AssertionError, match="console error: again"):
        guard.check()
    guard.expect("again")


@pytest.mark.slow
def test_queries_are_allowed_beside_the_browser_only(page):
    page.goto("/admin/login/")

    assert not User.objects.exists()
    assert os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.mark.slow
def test_a_browser_leaves_neither_processes_nor_a_loop(in_thread):
    """In a thread, because a thread has one loop at a time, and the loop of the other tests is still in use."""

    def use_one():
        with chromium.chromium(chromium.program()) as browser:
            found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
            asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return [process["id"] for process in found["processInfo"]]

    pids = in_thread(use_one).result()

    assert pids
    wait_until(lambda: not [pid for pid in pids if exists(pid)], what="the end of the browser's processes")


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without a browser, where CI is not set."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return monkeypatch


def test_without_a_browser_tests_are_skipped_with_a_reason(bare):
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium.program()


def test_without_playwright_tests_are_skipped_with_a_reason(bare):
    bare.setattr(chromium, "find_spec", lambda name: None)

    with pytest.raises(pytest.skip.Exception, match="needs the package playwright: pip install"):
        chromium.program()


def test_in_ci_a_missing_browser_fails(bare):
    bare.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium.program()
