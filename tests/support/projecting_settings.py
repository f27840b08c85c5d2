"""The shop's settings, with a projection that tests kill, freeze and rebuild."""

import os
from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.projecting_app"]
DECLARES_PROJECTIONS = True
DJANGO_EVENTS: dict[str, object] = {}
if "VANISHED_AFTER" in os.environ:
    DJANGO_EVENTS["VANISHED_AFTER"] = timedelta(seconds=float(os.environ["VANISHED_AFTER"]))
