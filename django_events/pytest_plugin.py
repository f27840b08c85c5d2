"""Fixtures for pytest with pytest-django, of what is in `django_events.testing`.

    # conftest.py
    pytest_plugins = ["django_events.pytest_plugin"]

Django is imported in the fixtures: this module is loaded before the settings are known.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_events.testing import PublishedEvent

__all__ = ["drain_events", "published_events"]


@pytest.fixture
def drain_events(db: None) -> Callable[..., int]:
    """`django_events.testing.drain`, on the test's database."""
    from django_events.testing import drain

    return drain


@pytest.fixture
def published_events(db: None) -> "Callable[..., list[PublishedEvent]]":
    """`django_events.testing.published`, on the test's database."""
    from django_events.testing import published

    return published
