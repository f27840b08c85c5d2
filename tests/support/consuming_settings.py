"""The shop's settings, with consumers for the tests of commands. Code is loaded again only where a test asks for it."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.consuming_app"]
