"""Inboxes from librdkafka's own cluster: what becomes an event, in which order, and what is gone.

It has no transactions, no compaction and no ids of topics: `test_inbox_from_a_real_kafka` has more, where there is one.
"""

import ctypes
import json
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest
from django.test import override_settings

from django_events import Draft, kafka_source
from django_events import kafka as kafka_topic
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.models import Inbox
from django_events.operating.inboxes import restart_inbox
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.brokers import MockKafka
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import take_in
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

SOURCE = kafka_source("bank")


@pytest.fixture
def cluster(kafka):
    return kafka


def add(cluster, *numbers, key="one", partition=None, fill=0):
    bodies = [json.dumps({"n": number, "fill": "x" * fill}).encode() for number in numbers]
    cluster.publish("bank", bodies, key=key, partition=partition)


def payment(message):
    return Draft(value=message.json()["n"], type="payment", key=message.key)


def values(topic):
    return [event.value for event in published(topic)]


def row():
    return Inbox.objects.get(name="things-in")


def error():
    assert row().failing_since is not None
    return row().error


@pytest.mark.slow
def test_what_a_relay_of_ours_wrote_is_taken_in_as_it_was(things, make_topic, make_relay, make_inbox, cluster):
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, [2, None], None, type="order.placed", key="Ä/da %")
    serve_due(make_relay(sent, to=kafka_topic("bank")))
    assert take_in(make_inbox(things, source=SOURCE)) == 3

    events = published(things)
    assert [(one.value, one.type, one.key) for one in events] == [
        ({"n": 1}, "order.placed", "Ä/da %"),
        ([2, None], "order.placed", "Ä/da %"),
        (None, "order.placed", "Ä/da %"),
    ]
    assert events[0].metadata["message"].startswith("bank/")
    assert events[0].metadata["message"].endswith("/0")
    assert events[0].metadata["ce"]["id"] == "sent/1"


@pytest.mark.slow
def test_a_structured_cloudevent_is_taken_in(things, make_topic, make_relay, make_inbox, cluster):
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, type="order.placed", key="Ada")
    serve_due(make_relay(sent, to=kafka_topic("bank"), form="cloudevent"))
    take_in(make_inbox(things, source=SOURCE))

    [event] = published(things)
    assert (event.value, event.key, event.type) == ({"n": 1}, "Ada", "order.placed")


def test_the_order_of_a_key_is_kept_over_many_batches_and_all_partitions_are_read(things, make_inbox, cluster):
    for key in "abcdefgh":
        add(cluster, *range(20), key=key)
    assert take_in(make_inbox(things, source=SOURCE, transform=payment, batch_size=7)) == 160
    by_key: dict[str, list[int]] = {}
    for event in published(things):
        by_key.setdefault(event.key, []).append(event.value)
    assert by_key == {key: list(range(20)) for key in "abcdefgh"}
    assert (row().taken, row().lag) == (160, 0)
    assert len(row().position) > 1


def test_headers_key_and_time_are_those_of_the_message(things, make_inbox, cluster):
    headers = [("Trace", b"one"), ("trace", b"two"), ("trace", b"three"), ("raw", b"\xff")]
    cluster.publish("bank", [b"1", None], key=b"\xffk", headers=headers, time=1_700_000_000_123)
    found = []
    take_in(make_inbox(things, source=SOURCE, transform=lambda message: found.append(message)))

    first, second = found
    assert (first.key, first.body, second.body) == ("\\xffk", b"1", None)
    assert first.headers == {"trace": "three", "trace (1)": "two", "raw": "\ufffd"}
    assert first.fields["raw"] == b"\xff"
    assert first.sent_at.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row().left_out == 2


@pytest.mark.slow
def test_a_time_that_python_does_not_have_holds_nothing_up(things, make_inbox, cluster):
    found = []
    for time in (1_700_000_000_000_000, 2**63 - 1, 1_700_000_000_000):  # the first is of another unit
        cluster.publish("bank", [b"1"], key="one", time=time)
    take_in(make_inbox(things, source=SOURCE, transform=lambda message: found.append(message.sent_at)))

    assert [one is None for one in found] == [True, True, False]


@pytest.mark.slow
def test_a_message_that_cannot_be_read_is_an_event_with_its_bytes_in_its_place(things, make_inbox, cluster):
    add(cluster, 1)
    cluster.publish("bank", [b"\xff\0"], key="one", headers=[("account", b"x"), ("data", b"\xfe")])
    add(cluster, 3)
    take_in(make_inbox(things, source=SOURCE, transform=payment))

    _, unreadable, last = published(things)
    assert (unreadable.type, unreadable.body, last.value) == ("inbox.unreadable", b"\xff\0", 3)
    assert unreadable.metadata["headers"] == {"account": "x", "data": "\ufffd"}
    assert unreadable.metadata["fields"] == {"account": "eA==", "data": "/g=="}


def test_a_header_whose_name_is_no_text_holds_nothing_up(things, make_inbox, cluster):
    """The client raises a SystemError for all headers of such a message."""
    cluster.publish("bank", [b'"before"'], partition=0)
    publish_with_header(cluster.servers, "bank", b"\xff\xfe", b'"it"')
    cluster.publish("bank", [b'"behind"'], partition=0)
    take_in(make_inbox(things, source=kafka_source("bank"), transform=lambda message: Draft(value=message.json())))

    assert values(things) == ["before", "it", "behind"]


def test_a_message_whose_headers_can_not_be_read_is_no_cloudevent_and_says_why(things, make_inbox, cluster):
    publish_with_header(cluster.servers, "bank", b"\xff\xfe", b"{}")
    take_in(make_inbox(things, source=kafka_source("bank")))

    [event] = published(things)
    assert (event.type, event.body) == ("inbox.unreadable", b"{}")
    assert "a name that is no UTF-8" in str(event.metadata)


def publish_with_header(servers, topic, name, body):
    """A message that Python's producer doesn't make: a header's name that is no text."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*.so*")
    library, words = ctypes.CDLL(str(path)), ctypes.create_string_buffer(512)
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    options = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(options, b"bootstrap.servers", servers.encode(), words, 512) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, options, words, 512))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    assert library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"1", ctypes.c_ssize_t(1)) == 0
    to, at, value, flags, beside, end = 1, 3, 4, 7, 10, 0
    copied, size = 2, ctypes.c_size_t(len(body))
    said = (to, ctypes.c_char_p(topic.encode()), at, ctypes.c_int32(0), value, ctypes.c_char_p(body), size)
    assert library.rd_kafka_producev(producer, *said, flags, copied, beside, headers, end) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", [1, 2, 3, 4]), ("end", [4]), ("0/1,bank/1/beginning, 2/beginning,3/end", [3, 4])],
)
def test_an_inbox_begins_where_it_is_told(things, make_inbox, cluster, start, expected):
    add(cluster, 1, 2, 3, partition=0)
    inbox = make_inbox(things, source=SOURCE, transform=payment, start=start)
    take_in(inbox)
    add(cluster, 4, partition=0)
    take_in(inbox)
    assert values(things) == expected


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("0/5,1/end,2/end,3/end", "which ends at 0"),
        ("0/0", "name each of them"),
        ("0", "is no place in a topic"),
        ("2026-11-27T00:00", "a time with its zone"),
        ("no such message", "is no place in a topic"),
    ],
)
def test_a_start_that_is_no_place_is_said(things, make_inbox, cluster, start, said):
    cluster.publish("bank", [b"1"], partition=0)
    assert take_in(make_inbox(things, source=SOURCE, transform=payment, start=start)) == 0
    assert said in error()


@pytest.mark.slow
def test_gaps_that_transactions_leave_are_no_loss(things, make_inbox, cluster):
    """A transaction's end takes an offset. The cluster writes it with a checksum that is wrong."""
    inbox = make_inbox(things, source=SOURCE, transform=payment, batch_size=2)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**cluster.options, "check.crcs": False}}}):
        read_gaps(things, inbox, cluster)
    assert values(things) == [1, 2, 3, 4, 5]
    assert (row().gone, row().error) == (0, "")


def read_gaps(things, inbox, cluster):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.servers, "transactional.id": "bank", "log_level": 0}
    )
    producer.init_transactions(20)
    for n in range(1, 6):
        producer.begin_transaction()
        producer.produce("bank", json.dumps({"n": n}), partition=0)
        producer.commit_transaction(20)
        if n in (1, 3):
            take_in(inbox)
    assert cluster.watermarks("bank", 0) == (0, 10)
    take_in(inbox)
    with closing(SOURCE.reader()) as reader:
        reader.open()
        assert reader.read(row().position, 10)[:3] == ([], [], 0)


@pytest.mark.slow
def test_a_partition_that_was_added_is_read_from_its_first_message_on(make_inbox, cluster):
    """The cluster can't add any: the places are those of a topic that had fewer."""
    add(cluster, 1, 2, partition=0)
    add(cluster, 3, 4, partition=1)
    with closing(SOURCE.reader()) as reader:
        reader.open()
        places = {log: place for log, place in reader.begin("end").items() if log == "bank/0"}
        found = reader.read(places, 10)
        assert [one.address for one in found.messages] == ["bank/1/0", "bank/1/1"]
        places["bank/1"] = found.messages[0].place_behind
        assert [one.address for one in reader.read(places, 10).messages] == ["bank/1/1"]


@pytest.mark.slow
def test_a_message_ends_the_waiting(cluster):
    add(cluster, 1)
    with closing(SOURCE.reader()) as reader:
        reader.open()
        places = reader.begin("end")
        reader.wait(places, 0.1)
        add(cluster, 2)
        reader.wait(places, 60)
        reader.wait(places, 60)
        [message] = reader.read(places, 10).messages
    assert message.json()["n"] == 2


def test_a_twin_that_is_faster_leaves_nothing_to_do(things, make_inbox, cluster):
    add(cluster, *range(10))
    began = []

    def transform(message):
        if not began:
            began.append(message)
            assert take_in(inbox) == 10
        return payment(message)

    inbox = make_inbox(things, source=SOURCE, transform=transform)
    assert take_in(inbox) == 0
    assert values(things) == list(range(10))


@pytest.mark.slow
def test_a_worker_that_stood_by_reads_from_where_the_row_is(things, make_inbox, cluster):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    add(cluster, 1)
    assert run(worker, stop, once=True) == 1
    add(cluster, 2)
    assert take_in(inbox) == 1
    add(cluster, 3)
    assert run(worker, stop, once=True) == 1
    restart_inbox("things-in", start="beginning")
    assert run(worker, stop, once=True) == 3
    worker.close()
    stop.close()
    assert values(things) == [1, 2, 3, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("expired", ["stop", "skip"])
def test_offsets_that_expired_are_said(things, make_inbox, cluster, expired):
    """The cluster keeps 5 MB of a partition."""
    inbox = make_inbox(things, source=SOURCE, transform=payment, expired=expired)
    add(cluster, 1, 2, partition=0)
    take_in(inbox)
    for n in range(3, 13):
        add(cluster, n, partition=0, fill=900_000)
    first, end = cluster.watermarks("bank", 0)
    assert (first > 2, end) == (True, 12)
    take_in(inbox)
    if expired == "stop":
        assert f"{first - 2} offsets of 'bank/0' behind 1 were removed" in error()
        assert values(things) == [1, 2]
    else:
        assert values(things) == [1, 2, *range(first + 1, 13)]
        assert row().gone == first - 2
        assert row().error == ""


@pytest.mark.slow
def test_offsets_that_expired_while_it_reads_are_said(things, make_inbox, cluster):
    """They go when it has asked what is there, and before it reads."""
    inbox = make_inbox(things, source=SOURCE, transform=payment, expired="skip")
    reader = SOURCE.reader()
    reader.open()
    add(cluster, 1, 2, partition=0)
    places = reader.begin("beginning")
    assert len(reader.read(places, 1).messages) == 1
    reader.close()
    take_in(inbox)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    for n in range(3, 13):
        add(cluster, n, partition=0, fill=900_000)
    run(worker, stop, once=True)
    first, _ = cluster.watermarks("bank", 0)
    assert row().gone == first - 2
    worker.close()
    stop.close()


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1, 2, 5])
def test_a_topic_that_was_made_anew_is_refused(things, make_inbox, cluster, tmp_path, more):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(cluster, 1, 2, partition=0)
    take_in(inbox)
    with closing(MockKafka(tmp_path)) as other, override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": other.options}}):
        take_in(inbox)
        assert "has no topic 'bank'" in error()
        add(other, *range(10, 10 + more), partition=0)
        other.publish("bank", [b'{"n": 99}'], partition=1)  # which nothing was taken in of
        assert take_in(inbox) == 0
        assert "deleted and made anew" in error()
        assert values(things) == [1, 2]
        restart_inbox("things-in", start="beginning")
        take_in(inbox)
        taken = [1, 2, *range(10, 10 + more)]
        assert [value for value in values(things) if value != 99] == taken
    take_in(inbox)
    assert "deleted and made anew" in error()


def test_an_inbox_that_reads_another_topic_now_says_so(things, make_inbox, cluster):
    add(cluster, 1)
    take_in(make_inbox(things, source=SOURCE, transform=payment))
    cluster.publish("other", [b"{}"])
    assert take_in(make_inbox(things, source=kafka_source("other"), transform=payment)) == 0
    assert "at a position of kafka bank, and a process declares it for kafka other" in error()


@pytest.mark.slow
def test_a_broker_that_is_frozen_is_found_again_by_the_same_worker(things, make_inbox, cluster):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    add(cluster, 1)
    assert run(worker, stop, once=True) == 1
    cluster.kill()
    try:
        run(worker, stop, once=True)
        assert "Kafka 'kafka'" in error()
        since = row().failing_since
    finally:
        cluster.start()
    add(cluster, 2)
    wait_until(lambda: run(worker, stop, once=True) == 1, what="the second one")
    worker.close()
    stop.close()
    assert since is not None
    assert values(things) == [1, 2]


def test_what_is_wrong_with_the_login_is_said_without_it(things, make_inbox):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    options = {
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "worker",
        "sasl.password": "hunter-two",
        "timeout": 0.3,
    }
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": options}}):
        take_in(inbox)
    assert "Kafka 'kafka'" in error()
    assert "hunter-two" not in error()


def test_an_option_that_is_wrong_is_named(things, make_inbox):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    options = {"bootstrap.servers": "127.0.0.1:1", "no.such.option": 1}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": options}}):
        take_in(inbox)
    assert "no.such.option" in error()
