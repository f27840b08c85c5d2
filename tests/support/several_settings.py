"""The post office's settings, with a second database: WEST_URL says where, on a server of its own."""

import os
from datetime import timedelta

from psycopg.conninfo import conninfo_to_dict

from tests.support.consuming_settings import *  # noqa: F403
from tests.support.consuming_settings import DATABASES

DJANGO_EVENTS = {}
if "VANISHED_AFTER" in os.environ:
    DJANGO_EVENTS["VANISHED_AFTER"] = timedelta(seconds=float(os.environ["VANISHED_AFTER"]))
if "WEST_URL" in os.environ:
    named = conninfo_to_dict(os.environ["WEST_URL"])
    DATABASES["west"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": named["dbname"],
        "USER": named["user"],
        "PASSWORD": named["password"],
        "HOST": named["host"],
        "PORT": str(named["port"]),
    }
