"""Inboxes whose source lies, whose messages are poison, and whose workers are late: real brokers, one live worker.

Each test is about one worker that goes on, because a worker that is started anew forgets what it believed.
"""

import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings

from django_events import Draft, RetryLater, jetstream_source, redis_source
from django_events.bridges.inboxes import inbox_worker
from django_events.bridges.inboxes import redis_source as redis_sources
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.bridges.inboxes.redis_source import RedisReader, RedisSource
from django_events.bridges.inboxes.taking_in import find, note_failure, note_served
from django_events.operating.inboxes import restart_inbox
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_inboxes import row, take_in, values
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21", "S8")]

SOURCE = redis_source("bank")
STREAM = jetstream_source("BANK")


def add(redis, *numbers):
    with redis.client() as client:
        return [client.xadd("bank", {"data": json.dumps(number)}) for number in numbers]


def send(nats, *numbers):
    async def publish(context):
        for number in numbers:
            await context.publish("bank.in", json.dumps(number).encode())

    nats.ask(publish)


def trim(redis, left):
    with redis.client() as client:
        client.xtrim("bank", maxlen=left, approximate=False)


def value_of(message):
    return Draft(value=message.json())


@contextmanager
def live(inbox) -> Iterator[InboxWorker]:
    with closing(InboxWorker("default", inbox, once=True)) as worker:
        yield worker


def turns(worker, until=lambda: True):
    """Let the worker go on until something is so."""

    def is_so():
        with closing(Stop()) as stop:
            run(worker, stop, once=True)
        return until()

    wait_until(is_so, what="what the worker is to do")


@pytest.fixture
def bank(nats):
    nats.add_stream("BANK", "bank.>")
    return nats


@dataclass(frozen=True, kw_only=True)
class HookedSource(RedisSource):
    """A source whose reader meets something between two questions."""

    before_reading: object = None
    before_counting: object = None

    def reader(self):
        return HookedReader(self)


class HookedReader(RedisReader):
    def read(self, places, most):
        if self._source.before_reading is not None:
            self._source.before_reading()
        return super().read(places, most)

    def _count(self, *places):
        if self._source.before_counting is not None:
            self._source.before_counting()
        return super()._count(*places)


def test_a_live_worker_of_an_idle_stream_begins_anew_when_it_is_told_to(things, make_inbox, redis):
    add(redis, 1, 2)
    with live(make_inbox(things, source=SOURCE, transform=value_of)) as worker:
        turns(worker, lambda: row().taken == 2)
        turns(worker)
        restart_inbox("things-in", start="beginning")
        turns(worker, lambda: row().taken == 4)
    assert values(things) == [1, 2, 1, 2]


def test_a_live_worker_goes_on_after_a_gap_and_a_stream_that_was_made_anew(things, make_inbox, redis):
    with live(make_inbox(things, source=SOURCE, transform=value_of)) as worker:
        add(redis, 1)
        turns(worker, lambda: row().taken == 1)
        add(redis, 2, 3, 4)
        trim(redis, 1)
        turns(worker, lambda: "2 messages of 'bank'" in row().error)
        restart_inbox("things-in", start="beginning")
        turns(worker, lambda: row().taken == 2)
        with redis.client() as client:
            client.delete("bank")
        add(redis, 10, 11)
        turns(worker, lambda: "made anew" in row().error)
        restart_inbox("things-in", start="beginning")
        turns(worker, lambda: row().taken == 4)
    assert values(things) == [1, 4, 10, 11]
    assert row().error == ""


def test_a_live_worker_of_jetstream_goes_on_after_a_gap_and_a_stream_that_was_made_anew(things, make_inbox, bank):
    with live(make_inbox(things, source=STREAM, transform=value_of)) as worker:
        send(bank, 1)
        turns(worker, lambda: row().taken == 1)
        send(bank, 2, 3, 4)
        bank.ask(lambda context: context.purge_stream("BANK", seq=4))
        turns(worker, lambda: "2 messages of 'BANK'" in row().error)
        restart_inbox("things-in", start="beginning")
        turns(worker, lambda: row().taken == 2)
        bank.clear()
        bank.add_stream("BANK", "bank.>")
        send(bank, 10, 11)
        turns(worker, lambda: "made anew" in row().error)
        restart_inbox("things-in", start="beginning")
        turns(worker, lambda: row().taken == 4)
    assert values(things) == [1, 4, 10, 11]


def test_a_worker_that_rests_for_an_hour_sees_that_the_inbox_was_begun_anew(things, make_inbox, redis, monkeypatch):
    monkeypatch.setattr(inbox_worker, "SAID_SERVED", 0.01)
    ids = add(redis, 1, 2)

    def transform(message):
        if message.json() == 1:
            raise RetryLater("not today", after=timedelta(hours=1))
        return value_of(message)

    with live(make_inbox(things, source=SOURCE, transform=transform)) as worker:
        turns(worker, lambda: "not today" in row().error)
        seen = row().served_at
        turns(worker, lambda: row().served_at > seen)  # it is served while it rests
        restart_inbox("things-in", start=ids[0])
        turns(worker, lambda: row().taken == 1)
    assert values(things) == [2]


def test_a_standby_with_an_old_row_finds_no_gap_after_a_trim(things, make_inbox, redis):
    add(redis, 1, 2, 3)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    with live(inbox) as standby, live(inbox) as other:
        turns(other, lambda: row().taken == 3)
        turns(standby)
        add(redis, *range(4, 20))
        turns(other, lambda: row().taken == 19)
        trim(redis, 2)
        turns(standby)
        assert row().error == ""
        add(redis, 20)
        turns(standby, lambda: row().taken == 20)
    assert values(things) == list(range(1, 21))


def test_what_a_worker_finds_missing_at_a_place_that_was_left_is_not_told(things, make_inbox, redis, caplog):
    """It knows the row, and before it reads, another one takes in what is there, and it is trimmed."""
    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    take_in(inbox)
    met = []

    def meet():
        if not met:
            met.append(1)
            add(redis, *range(2, 10))
            assert take_in(inbox) == 8
            trim(redis, 2)

    hooked = make_inbox(things, source=HookedSource(stream="bank", before_reading=meet), transform=value_of)
    with live(hooked) as late:
        caplog.clear()
        turns(late)
        assert row().error == ""
        assert "were removed" not in caplog.text
        add(redis, 10)
        turns(late, lambda: row().taken == 10)
    assert values(things) == list(range(1, 11))


def test_what_was_read_before_an_inbox_was_begun_anew_is_not_published_after_it(things, make_inbox, redis):
    """The position is the same again: where the stream begins. The messages are others."""
    add(redis, 1, 2, 3)
    froze = []

    def transform(message):
        if not froze:
            froze.append(1)
            with redis.client() as client:
                client.delete("bank")
            add(redis, 50, 51, 52, 53)
            restart_inbox("things-in", start="beginning")
            with live(inbox) as twin, closing(Stop()) as stop:
                twin.connect()
                twin.work(stop)  # begins, and waits in front of the first message
            assert row().position == before[0]
        elif len(froze) == 1:
            froze.append(2)
            raise RetryLater("the twin waits", after=timedelta(hours=1))
        return value_of(message)

    inbox = make_inbox(things, source=SOURCE, transform=transform)
    before = [{"bank": {"id": "0-0", "passed": 0, "whole": "0-0"}}]
    with live(inbox) as frozen:
        turns(frozen, lambda: row().taken == 4)
    assert values(things) == [50, 51, 52, 53]


@pytest.mark.parametrize("char", ["\\u0000", "\\ud800"])
@pytest.mark.parametrize("on_unreadable", ["publish", "stop"])
def test_an_error_with_characters_that_cannot_be_stored_is_stored(things, make_inbox, redis, char, on_unreadable):
    with redis.client() as client:
        client.xadd("bank", {"data": f'{{"currency": "{char}"}}'})
    add(redis, 2)
    attempts = []

    def transform(message):
        if message.json() == 2:
            return value_of(message)
        attempts.append(1)
        raise ValueError("unknown currency " + message.json()["currency"])

    take_in(make_inbox(things, source=SOURCE, transform=transform, on_unreadable=on_unreadable))
    if on_unreadable == "publish":
        unreadable, last = published(things)
        assert "unknown currency \\" in unreadable.metadata["error"]
        assert (last.value, row().error) == (2, "")
    else:
        assert "transform raised ValueError" in row().error


def test_retry_later_with_characters_that_cannot_be_stored_is_stored(things, make_inbox, redis):
    add(redis, 1)

    def transform(message):
        raise RetryLater("wait \0 \ud800" + "x" * 5_000, after=timedelta(hours=1))

    take_in(make_inbox(things, source=SOURCE, transform=transform))
    assert "wait \\0 \\ud800" in row().error
    assert len(row().error) <= 1_000


def test_a_version_of_too_many_digits_is_none(things, make_inbox, redis):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "ce_type": "a", "ce_schemaversion": "9" * 5_000, "data": "1"})
        client.xadd("bank", {"ce_id": "2", "ce_type": "a", "data": "2"})
    take_in(make_inbox(things, source=SOURCE))
    assert values(things) == [1, 2]


@pytest.mark.parametrize("reads", [True, False])
def test_headers_that_are_not_ascii_are_read_as_utf_8(things, make_inbox, bank, reads):
    headers = {"ce-id": "1", "ce-source": "Zürich", "odd": "é"}
    bank.publish("bank.in", b"1" if reads else b"no JSON", **headers)
    send(bank, 2)
    take_in(make_inbox(things, source=STREAM))
    first, _ = published(things)
    if reads:
        assert (first.value, first.metadata["ce"]["source"]) == (1, "Zürich")
    else:
        assert first.metadata["headers"] == headers


@pytest.mark.parametrize("question", ["SELECT %s::smallint", "SELECT 1 / (%s - 70000)"])
def test_an_error_of_the_database_that_a_message_causes_in_transform_is_that_messages(
    things, make_inbox, redis, question
):
    add(redis, 70_000, 2)

    def transform(message):
        if message.json() > 2:
            with connection.cursor() as cursor:
                cursor.execute(question, [message.json()])
        return value_of(message)

    take_in(make_inbox(things, source=SOURCE, transform=transform))
    unreadable, last = published(things)
    assert "transform raised DataError" in unreadable.metadata["error"]
    assert last.value == 2


def test_what_an_error_of_transform_says_is_kept_with_the_payload_alone(things, make_inbox, redis, caplog):
    add(redis, "secret-iban")

    def transform(message):
        raise LookupError(f"no account {message.json()}")

    inbox = make_inbox(things, source=SOURCE, transform=transform, on_unreadable="stop")
    take_in(inbox)
    assert "transform raised LookupError" in row().error
    assert "secret-iban" not in row().error + caplog.text
    take_in(make_inbox(things, source=SOURCE, transform=transform))
    [event] = published(things)
    assert "secret-iban" in event.metadata["error"]
    assert "secret-iban" not in caplog.text


@pytest.mark.slow
def test_messages_of_a_server_that_gave_their_numbers_to_others_are_not_skipped(things, make_inbox, bank):
    """It came back without 11 to 15, which were taken in, and seven new ones have the numbers from 11 on."""
    send(bank, *range(1, 11))
    bank.kill()
    kept, used = bank.folder / "kept", bank.folder / "jetstream"
    shutil.copytree(used, kept)
    bank.start()
    send(bank, *range(11, 16))
    inbox = make_inbox(things, source=STREAM, transform=value_of)
    take_in(inbox)
    assert values(things) == list(range(1, 16))
    bank.kill()
    shutil.rmtree(used)
    shutil.move(kept, used)
    bank.start()
    send(bank, *range(101, 108))
    assert take_in(inbox) == 0
    assert "given their numbers to others" in row().error
    restart_inbox("things-in", start="10")
    assert take_in(inbox) == 7
    assert values(things) == [*range(1, 16), *range(101, 108)]


@pytest.mark.slow
def test_a_batch_of_more_bytes_than_a_server_sends_at_once_is_taken_in(things, make_inbox, bank):
    async def publish(context):
        for number in range(110):
            await context.publish("bank.in", b"%d " % number + b"x" * 900_000)

    bank.ask(publish)
    inbox = make_inbox(
        things, source=STREAM, transform=lambda message: Draft(value=int(message.body.split()[0])), batch_size=500
    )
    assert take_in(inbox) == 110
    assert values(things) == list(range(110))


@pytest.fixture
def strict_bank(bank, tmp_path):
    """One whose reader may ask what a stream is, and not for its messages; the options of that reader."""
    send(bank, 1)
    rights = 'publish: ["$JS.API.STREAM.INFO.*"], subscribe: ["_INBOX.>"]'
    conf = tmp_path / "nats.conf"
    conf.write_text(f"authorization {{ users: [{{user: reader, password: hunter-two, permissions: {{{rights}}}}}] }}")
    bank.kill()
    bank.launch("-c", str(conf))
    yield {"servers": [f"nats://reader:hunter-two@127.0.0.1:{bank.port}"], "timeout": 1.0}
    bank.kill()
    bank.start()


@pytest.mark.slow
def test_a_right_that_jetstream_lacks_is_said(things, make_inbox, strict_bank):
    inbox = make_inbox(things, source=STREAM, transform=value_of)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"nats": strict_bank}}):
        wait_until(lambda: take_in(inbox) or "permissions violation" in row().error.lower(), what="the reason")
    assert "hunter-two" not in row().error


@pytest.fixture
def reader_of_redis(redis):
    """The options of a user who may do all that an inbox needs but wait."""
    with redis.client() as client:
        rights = ["+ping", "+xinfo", "+xrange", "+multi", "+exec", "+hello", "+client"]
        client.acl_setuser("reader", enabled=True, passwords=["+hunter-two"], keys=["*"], commands=rights)
        yield {**redis.options, "username": "reader", "password": "hunter-two"}
        client.acl_deluser("reader")


def test_a_right_that_redis_lacks_for_waiting_is_said(things, make_inbox, redis, reader_of_redis):
    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    with (
        override_settings(DJANGO_EVENTS={"BROKERS": {"redis": reader_of_redis}}),
        live(inbox) as worker,
        closing(Stop()) as stop,
    ):
        turns(worker, lambda: row().taken == 1)
        worker.wait(stop)
        turns(worker)
        since = row().failing_since
        assert "xread" in row().error.lower()
        assert "hunter-two" not in row().error
        turns(worker)
        assert row().failing_since == since
    take_in(inbox)
    assert row().error == ""


def test_an_inbox_that_begins_beside_a_producer_finds_no_gap(things, make_inbox, redis):
    ids = add(redis, 1, 2, 3)
    source = HookedSource(stream="bank", before_counting=lambda: add(redis, 4, 5))
    take_in(make_inbox(things, source=source, transform=value_of, start=ids[0]))
    assert row().error == ""
    assert values(things) == [2, 3, 4, 5]


def test_an_inbox_that_begins_behind_an_id_counts_all_pages(things, make_inbox, redis, monkeypatch):
    monkeypatch.setattr(redis_sources, "COUNTED", 2)
    ids = add(redis, *range(1, 8))
    take_in(make_inbox(things, source=SOURCE, transform=value_of, start=ids[1]))
    assert values(things) == [3, 4, 5, 6, 7]
    assert row().error == ""


def test_an_inbox_that_is_to_begin_in_what_was_trimmed_says_so(things, make_inbox, redis):
    ids = add(redis, *range(1, 8))
    trim(redis, 3)
    inbox = make_inbox(things, source=SOURCE, transform=value_of, start=ids[1])
    assert take_in(inbox) == 0
    assert "entries behind" in row().error
    assert "--from beginning" in row().error
    restart_inbox("things-in", start=ids[4])  # the oldest that is left: all behind it is there
    assert take_in(inbox) == 2
    assert values(things) == [6, 7]


def test_an_inbox_that_is_to_begin_behind_the_end_says_so(things, make_inbox, redis):
    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=value_of, start="9900000000000-0")
    take_in(inbox)
    assert "to begin behind 9900000000000-0" in row().error
    assert "made anew" not in row().error


def test_an_inbox_of_jetstream_that_is_to_begin_behind_the_end_says_so(things, make_inbox, bank):
    send(bank, 1)
    take_in(make_inbox(things, source=STREAM, transform=value_of, start="7"))
    assert "to begin behind message 7" in row().error
    assert "made anew" not in row().error


def test_a_gap_that_is_counted_late_is_told_from_where_all_was_there(things, make_inbox, redis):
    """Full batches in front of it are taken in before the end of the stream is read."""
    inbox = make_inbox(things, source=SOURCE, transform=value_of, batch_size=5)
    [whole] = add(redis, 0)
    take_in(inbox)
    ids = add(redis, *range(1, 13))
    with redis.client() as client:
        client.xdel("bank", ids[1])
    take_in(inbox)
    assert f"1 message of 'bank' behind {whole} were removed" in row().error
    assert values(things) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_fields_whose_name_comes_twice_are_kept(things, make_inbox, redis):
    with redis.client() as client:
        client.execute_command("XADD", "bank", "*", "data", "1", "tag", "a", "tag", "b", "data", "no JSON", "tag", "c")
        client.execute_command("XADD", "bank", "*", "data", "1", "tag", "a", "tag", "b")

    def transform(message):
        return Draft(value=message.json(), key=message.headers["tag"], metadata={"before": message.headers["tag (1)"]})

    take_in(make_inbox(things, source=SOURCE, transform=transform))
    unreadable, read = published(things)
    fields = {name: b64decode(value) for name, value in unreadable.metadata["fields"].items()}
    assert unreadable.body == b"no JSON"
    assert fields == {"data (1)": b"1", "tag (2)": b"a", "tag (1)": b"b", "tag": b"c"}
    assert (read.value, read.key, read.metadata["before"]) == (1, "b", "a")


def test_a_note_waits_for_no_other_process(things, make_inbox, connect):
    """One that is frozen while it sends rows has the row of the inbox for as long as it is there."""
    session = connect()
    inbox = make_inbox(things, source=SOURCE)
    found = find("default", inbox)
    session.execute("SELECT FROM django_events_inbox FOR UPDATE")
    assert note_served("default", found, 1)
    assert note_failure("default", found, "nothing comes")
    assert (row().served_at, row().error) == (None, "")
    session.rollback()
    assert note_failure("default", found, "nothing comes")
    assert row().error == "nothing comes"
