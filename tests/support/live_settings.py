"""The shop's settings, with a site of nothing but streams."""

from testproject.settings import *  # noqa: F403

MIDDLEWARE: list[str] = []
ROOT_URLCONF = "tests.support.live_site"
