"""The shop's settings, with consumers that tests kill, freeze and stop."""

import os
from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.fault_app"]

DATABASES["default"] |= {"OPTIONS": {"application_name": "worker"}}

# Handlers write here beside their transaction, so that it stays when they are rolled back. It goes to the
# server itself also where the other connections go through a pooler.
DATABASES["aside"] = {
    **DATABASES["default"],
    "OPTIONS": {"application_name": "aside", "options": "-c synchronous_commit=off"},
}
if "ASIDE_PORT" in os.environ:
    DATABASES["aside"] |= {"PORT": os.environ["ASIDE_PORT"], "PASSWORD": os.environ["ASIDE_PASSWORD"]}

DJANGO_EVENTS: dict[str, object] = {}
if "VANISHED_AFTER" in os.environ:
    DJANGO_EVENTS["VANISHED_AFTER"] = timedelta(seconds=float(os.environ["VANISHED_AFTER"]))
if "POLL_INTERVAL" in os.environ:
    DJANGO_EVENTS["POLL_INTERVAL"] = timedelta(seconds=float(os.environ["POLL_INTERVAL"]))
if "SLEEPS" in os.environ:  # its server allows prepared transactions, so it would poll by itself
    DJANGO_EVENTS["WAKE_UPS"] = True
if "WEBHOOK_NETWORKS" in os.environ:
    DJANGO_EVENTS["WEBHOOK_NETWORKS"] = os.environ["WEBHOOK_NETWORKS"].split(",")
