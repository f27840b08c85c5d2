"""The shop's settings, with models whose changes are events, and models that projections keep."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.publishing_app", "tests.support.projecting_app"]
