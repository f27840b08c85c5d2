"""A driver whose host loses its power or its network: the server ends what it holds, and another driver goes on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection

from django_events.exporting.locking import alone
from django_events.models import Event, SinkBatch, StagedEvent
from django_events.reading.dsn import Dsn
from django_events.spark import sink
from django_events.spark.options import for_sink
from django_events.spark.sink import Staged, StreamWriter
from tests.spark.conftest import move
from tests.spark.test_export import url
from tests.spark.test_sink_cuts import SCHEMA
from tests.support.proxies import SilentProxy

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.quick]


@pytest.fixture
def far(transactional_db: None) -> Iterator[SilentProxy]:
    """The way of the host that vanishes."""
    proxy = SilentProxy(url(connection.get_connection_params()))
    try:
        yield proxy
    finally:
        proxy.close()
        SinkBatch.objects.all().delete()
        StagedEvent.objects.all().delete()


def staged(writer: StreamWriter, run: str) -> Staged:
    message = writer.sink.stage(iter([pa.record_batch({"value": ["1"]})]))
    return replace(message, query="q", run=run)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(
    "words",
    ["INSERT INTO django_events_sinkbatch", "INSERT INTO django_events_bufferedevent"],
    ids=["when it locks its sink", "when it publishes"],
)
def test_in_the_middle_of_publishing_a_batch(
    far: SilentProxy, dsn: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """It has the row of its sink locked, and the same batch comes again to another driver."""
    monkeypatch.setattr(sink, "VANISHED_AFTER", "1s")
    topic = make_topic()
    lost, near = (
        StreamWriter(for_sink({"dsn": address, "topic": "things", "sink": "s"}), SCHEMA, overwrite=False)
        for address in (far.url, dsn)
    )
    messages = [staged(lost, "1")], [staged(near, "2")]
    far.vanish_at(words, arrives=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lost.commit, messages[0], 0)
        assert far.vanished.wait(60)
        near.commit(messages[1], 0)

        move()
        assert [event.value for event in Event.objects.since(topic)] == [1]
        far.come_back()
        first.result(60)
    move()
    assert [event.value for event in Event.objects.since(topic)] == [1]
    assert not StagedEvent.objects.exists()


def test_who_has_a_folder_is_asked_whether_it_is_there(dsn: str, tmp_path: Path) -> None:
    """What has a lock says nothing for hours. The probes are the kernel's, so no test here can swallow them."""
    names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]
    with alone(Dsn(dsn), f"file://{tmp_path}/") as lock:
        found = [lock._connection.execute(f"SHOW {name}").fetchone() for name in names]

    assert found == [("10",), ("5",), ("3",), ("25000",)]
