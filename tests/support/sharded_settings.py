"""The post office's settings, with databases that share keys: WEST_URL and NORTH_URL say where the other two are."""

import os

from psycopg.conninfo import conninfo_to_dict

from tests.support.consuming_settings import *  # noqa: F403
from tests.support.consuming_settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.sharded_app"]
for alias in ("west", "north"):
    if f"{alias.upper()}_URL" in os.environ:
        named = conninfo_to_dict(os.environ[f"{alias.upper()}_URL"])
        DATABASES[alias] = {**DATABASES["default"], "NAME": named["dbname"]}
