"""The settings of the tests that kill, with topics that forget and fail."""

from tests.support.fault_settings import *  # noqa: F403
from tests.support.fault_settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.restore_app"]
