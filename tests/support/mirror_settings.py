"""The shop's settings, with a topic that another site has too, as the test says how."""

import json
import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.mirror_app"]

DJANGO_EVENTS = {"BROKERS": json.loads(os.environ.get("MIRROR_BROKERS", "{}"))}
