"""The shop's settings, with an inbox from a broker of the test's."""

import json
import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.inbox_app"]

DJANGO_EVENTS = {"BROKERS": json.loads(os.environ.get("INBOX_BROKERS", "{}"))}
