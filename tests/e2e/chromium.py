"""The browser: an installed Chromium, which reaches nothing but this machine and leaves nothing behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ["chromium", "chromium-browser", "google-chrome"]
HOST = "127.0.0.1"


def program() -> str:
    """The path of the browser. The test is skipped where something is missing, and fails where CI is set."""
    if find_spec("playwright") is None:
        miss("needs the package playwright: pip install 'playwright>=1.45'")
    if found := next(filter(None, map(shutil.which, PROGRAMS)), None):
        return found
    return miss(f"needs a browser ({' or '.join(PROGRAMS)} on the PATH): apt-get install chromium")


def miss(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}. CI is set, so this isn't skipped.", pytrace=False)
    pytest.skip(reason)


@contextmanager
def chromium(path: str) -> Iterator["Browser"]:
    """A browser until the block ends, by itself or by the end of this process.

    Playwright's loop counts as running in this thread for all of the block, in between its calls too, so Django would
    refuse every query here as one of async code. None of our code runs in that loop.
    """
    from playwright.sync_api import sync_playwright

    with (
        tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home,
        pytest.MonkeyPatch.context() as patched,
        sync_playwright() as playwright,
    ):
        patched.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(
            executable_path=path,
            headless=True,
            chromium_sandbox=os.geteuid() != 0,  # its sandbox refuses to be root's
            # No name is looked up and no address but this one is connected to, whatever a page asks for.
            args=[f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}", "--font-render-hinting=none"],
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home},
        )
        try:
            yield browser
        finally:
            browser.close()
