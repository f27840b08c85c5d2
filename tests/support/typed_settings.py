"""The shop's settings, with a topic whose events are described: a follower writes them as columns."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.typed_app"]
