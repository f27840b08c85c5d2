"""The connection of a sink that ends at the worst moment: at each byte of a COMMIT, and of its answer."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection
from pyspark.sql.types import StringType, StructField, StructType

from django_events.models import Event, SinkBatch, StagedEvent
from django_events.spark.options import for_sink
from django_events.spark.sink import BatchWriter, StreamWriter
from tests.faults.consumers.cutting_proxy import COMMIT, CuttingProxy, _ending
from tests.spark.conftest import move
from tests.spark.test_export import url

pytestmark = pytest.mark.usefixtures("transactional_db")

SCHEMA = StructType([StructField("value", StringType())])
ASKED = 1 + 4 + len(COMMIT)  # bytes of the message that asks for it
ANSWERED = ASKED + 6  # and of the answer, with what says that the server is ready


class Cutter(CuttingProxy):
    """Lets so many bytes of the next COMMIT through, or of its answer, and then ends the connection."""

    asked = answered = None

    def _to_server(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with _ending(client, server):
            while data := client.recv(65_536):
                if COMMIT in data and self.asked is not None:
                    bytes_, self.asked = self.asked, None
                    self.lost.set()
                    server.sendall(data[:bytes_])
                    return
                if COMMIT in data and self.answered is not None:
                    cut.set()
                server.sendall(data)

    def _to_client(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with _ending(client, server):
            while data := server.recv(65_536):
                if cut.is_set() and COMMIT in data:
                    bytes_, self.answered = self.answered, None
                    self.lost.set()
                    client.sendall(data[:bytes_])
                    return
                client.sendall(data)


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Cutter]:
    one = Cutter(url(connection.get_connection_params()))
    try:
        yield one
    finally:
        one.close()
        SinkBatch.objects.all().delete()


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("sink", [None, "s"])
@pytest.mark.parametrize("where", ["asked", "answered"])
def test_a_commit_that_is_cut_publishes_once(proxy: Cutter, make_topic: Any, where: str, sink: str | None) -> None:
    topic = make_topic()
    named = {"sink": sink} if sink else {}
    options = for_sink({"dsn": proxy.url, "topic": "things", **named})
    kind = StreamWriter if sink else BatchWriter
    writer: Any = kind(options, SCHEMA, overwrite=False)
    cuts = range(ASKED + 1 if where == "asked" else ANSWERED)

    for n in cuts:
        message = writer.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        proxy.lost.clear()
        setattr(proxy, where, n)
        if sink:
            writer.commit([replace(message, query="q")], n)
        else:
            writer.commit([message])
        assert proxy.lost.is_set()

    move()
    assert [event.value for event in Event.objects.since(topic)] == list(cuts)
    assert not StagedEvent.objects.exists()


@pytest.mark.parametrize("where", ["asked", "answered"])
def test_a_batch_whose_writer_gave_up_is_published_once_when_it_comes_again(
    proxy: Cutter, make_topic: Any, where: str
) -> None:
    """The driver died with the answer: Spark gives the batch again, to another writer, in another run."""
    topic = make_topic()
    options = for_sink({"dsn": proxy.url, "topic": "things", "sink": "s"})
    for n in range(ASKED if where == "asked" else ANSWERED):
        first, again = (StreamWriter(options, SCHEMA, overwrite=False) for _ in range(2))
        message = first.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        setattr(proxy, where, n)
        with (
            pytest.raises(Exception, match="connection"),
            first.sink.options.dsn.connected() as used,
            used.transaction(),
        ):
            first.sink._publish(used, [replace(message, query="q", run="1")], "s", n, again=False)
        anew = again.sink.stage(iter([pa.record_batch({"value": [str(n)]})]))
        again.commit([replace(anew, query="q", run="2")], n)

    move()
    assert [event.value for event in Event.objects.since(topic)] == list(range(n + 1))
    StagedEvent.objects.all().delete()  # of the writers that gave up before the server had decided
