"""No thread that looks for those who wait outlives its test."""

import threading
from collections.abc import Iterator

import pytest

from django_events.deriving import lookout
from tests.support.processes import wait_until


@pytest.fixture(autouse=True)
def no_lookout_stays(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lookout, "IDLE", 0.0)
    yield
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("django_events lookout")])
