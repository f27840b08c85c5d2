"""The shop's settings, with a site of nothing but streams."""

from testproject.settings import *  # noqa: F403

ROOT_URLCONF = "tests.support.live_site"
