"""The connection of a sink that ends at the worst moment: at each byte of a COMMIT, and of its answer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from django.db import connection
from pyspark.sql.types import StringType, StructField, StructType

from django_events.models import Event, SinkBatch, StagedEvent
from django_events.spark.options import for_sink
from django_events.spark.sink import BatchWriter, StreamWriter
from tests.spark.conftest import move
from tests.spark.test_export import url
from tests.support.proxies import CUTS_OF_ANSWER, CUTS_OF_COMMIT, ByteProxy, Cut

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.quick]

SCHEMA = StructType([StructField("value", StringType())])
CUTS = {"of the COMMIT": CUTS_OF_COMMIT, "of its answer": CUTS_OF_ANSWER}


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[ByteProxy]:
    one = ByteProxy(url(connection.get_connection_params()))
    try:
        yield one
    finally:
        one.close()
        SinkBatch.objects.all().delete()


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("sink", [None, "s"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.few(1)
def test_a_commit_that_is_cut_publishes_once(
    proxy: ByteProxy, make_topic: Any, cuts: list[Cut], sink: str | None
) -> None:
    topic = make_topic()
    named = {"sink": sink} if sink else {}
    options = for_sink({"dsn": proxy.url, "topic": "things", **named})
    kind = StreamWriter if sink else BatchWriter
    writer: Any = kind(options, SCHEMA, overwrite=False)

    for n, cut in enumerate(cuts):
        message = writer.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        proxy.cut(cut)
        if sink:
            writer.commit([replace(message, query="q")], n)
        else:
            writer.commit([message])
        assert proxy.done.wait(60), str(cut)

    move()
    assert [event.value for event in Event.objects.since(topic)] == list(range(len(cuts)))
    assert not StagedEvent.objects.exists()


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.few(1)
def test_a_batch_whose_writer_gave_up_is_published_once_when_it_comes_again(
    proxy: ByteProxy, make_topic: Any, cuts: list[Cut]
) -> None:
    """The driver died with the answer: Spark gives the batch again, to another writer, in another run."""
    topic = make_topic()
    options = for_sink({"dsn": proxy.url, "topic": "things", "sink": "s"})
    for n, cut in enumerate(one for one in cuts if one.error or not one.is_whole):
        first, again = (StreamWriter(options, SCHEMA, overwrite=False) for _ in range(2))
        message = first.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        proxy.cut(cut)
        with (
            pytest.raises(psycopg.OperationalError),
            first.sink.options.dsn.connected() as used,
            used.transaction(),
        ):
            first.sink._publish(used, [replace(message, query="q", run="1")], "s", n, again=False)
        anew = again.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        again.commit([replace(anew, query="q", run="2")], n)

    move()
    assert [event.value for event in Event.objects.since(topic)] == list(range(n + 1))
    StagedEvent.objects.all().delete()  # of the writers that gave up before the server had decided
