"""What the reader of a JetStream does while a batch is on its way: a question for each message, some at once."""

import json
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import override_settings

from django_events import Draft, jetstream_source
from django_events.bridges.inboxes import jetstream_source as reading
from django_events.bridges.inboxes.jetstream_source import AT_ONCE, JetStreamReader, JetStreamSource
from django_events.bridges.inboxes.sources import SourceUnavailable
from tests.support.fix_inboxes import row, take_in, values
from tests.support.processes import wait_until
from tests.support.proxies import SilentProxy

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21", "S8")]

MANY = 3 * AT_ONCE
MIDDLE = MANY // 2  # is asked for when some were answered
SOURCE = jetstream_source("BANK")


@dataclass(frozen=True, kw_only=True)
class MetSource(JetStreamSource):
    """A source that meets something, once, when the message in the middle has come."""

    meets: Any = None

    def reader(self):
        return MetReader(self)


class MetReader(JetStreamReader):
    def _message_of(self, number, answer, created):
        if number == MIDDLE and self._source.meets is not None:
            thread = threading.Thread(target=self._source.meets)
            thread.start()
            thread.join()
        return super()._message_of(number, answer, created)


class MeasuredReader(JetStreamReader):
    """Notes how many questions have no answer at the same time."""

    most_awaited = 0

    async def _ask(self):
        await super()._ask()
        self.most_awaited = max(self.most_awaited, len(self._batch.awaited))


@pytest.fixture
def bank(nats):
    nats.add_stream("BANK", "bank")
    return nats


@pytest.fixture
def open_reader(bank):
    """A reader, and the places in front of the stream."""
    with closing(MeasuredReader(SOURCE)) as reader:
        reader.open()
        yield reader, reader.begin("beginning")


def add(nats, *numbers, size=0):
    async def publish(context):
        for number in numbers:
            await context.publish("bank", json.dumps(number).encode() + b" " * size)

    nats.ask(publish)


def value_of(message):
    return Draft(value=message.json())


def once(meet):
    """The same, but nothing the next time."""
    met = []

    def meets():
        if not met:
            met.append(True)
            meet()

    return meets


def test_a_batch_is_asked_for_some_at_a_time_and_comes_in_order(bank, open_reader):
    add(bank, *range(MANY))
    reader, places = open_reader
    found = reader.read(places, MANY)
    assert [one.json() for one in found.messages] == list(range(MANY))
    assert found.lag == MANY
    assert reader.most_awaited == AT_ONCE


def test_of_large_messages_no_more_are_asked_for_than_a_server_sends(bank, open_reader, monkeypatch):
    monkeypatch.setattr(reading, "AT_ONCE_BYTES", 2 * 2**20)  # two of a megabyte each, which is the most of this server
    add(bank, *range(10))
    reader, places = open_reader
    assert [one.json() for one in reader.read(places, 10).messages] == list(range(10))
    assert reader.most_awaited == 2


@pytest.mark.parametrize("limit", ["bytes", "time"])
def test_a_batch_that_is_large_or_slow_is_what_was_asked_for_by_then(bank, open_reader, monkeypatch, limit):
    class LateQuestions(reading._Questions):
        def __init__(self, numbers, asks_until):
            super().__init__(numbers, 0.0)

    if limit == "bytes":
        monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    else:
        monkeypatch.setattr(reading, "_Questions", LateQuestions)
    add(bank, *range(MANY), size=100)
    reader, places = open_reader
    found = reader.read(places, MANY)
    assert [one.json() for one in found.messages] == list(range(AT_ONCE))
    assert found.lag == MANY
    following = reader.read({"BANK": found.messages[-1].place_behind}, MANY)
    assert [one.json() for one in following.messages] == list(range(AT_ONCE, 2 * AT_ONCE))


def test_messages_that_were_deleted_all_over_a_batch_are_gaps_in_their_places(things, make_inbox, bank):
    add(bank, *range(1, MANY + 1))
    deleted = [2, AT_ONCE - 1, AT_ONCE, MIDDLE, MIDDLE + 1, MANY - 1]

    async def delete(context):
        for number in deleted:
            await context.delete_msg("BANK", number)

    bank.ask(delete)
    take_in(make_inbox(things, source=SOURCE, transform=value_of, expired="skip"))
    assert values(things) == [number for number in range(1, MANY + 1) if number not in deleted]
    assert row().gone == len(deleted)


def test_a_stream_that_is_purged_in_the_middle_of_a_batch_tells_what_is_gone(things, make_inbox, bank):
    """All that had come is taken in, and the rest was removed."""
    add(bank, *range(1, MANY + 1))
    purge = once(lambda: bank.ask(lambda context: context.purge_stream("BANK")))
    inbox = make_inbox(things, source=MetSource(stream="BANK", meets=purge), transform=value_of, expired="skip")
    take_in(inbox)
    add(bank, MANY + 1)
    take_in(inbox)
    taken = values(things)
    assert len(taken) >= MIDDLE
    assert taken == [*range(1, len(taken)), MANY + 1]
    assert row().gone == MANY + 1 - len(taken)


def test_a_stream_that_is_made_anew_in_the_middle_of_a_batch_gives_nothing(things, make_inbox, bank):
    def replace():
        bank.clear()
        bank.add_stream("BANK", "bank")
        add(bank, *range(1_000, 1_000 + 2 * MANY))

    add(bank, *range(1, MANY + 1))
    inbox = make_inbox(things, source=MetSource(stream="BANK", meets=once(replace)), transform=value_of)
    assert take_in(inbox) == 0
    assert "made anew" in row().error
    assert values(things) == []


def test_a_stream_that_is_not_there_is_no_stream_whose_messages_were_removed(bank, open_reader):
    add(bank, 1, 2)
    reader, _ = open_reader
    [_, removed] = reader._messages([1, 3], "")
    assert removed is None
    bank.clear()
    with pytest.raises(SourceUnavailable, match="stream not found"):
        reader._messages([1, 2], "")


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_of_a_batch_gives_all_of_it_later(things, make_inbox, bank):
    add(bank, *range(MANY))
    inbox = make_inbox(things, source=MetSource(stream="BANK", meets=once(bank.kill)), transform=value_of)
    assert take_in(inbox) == 0
    assert "NATS 'nats'" in row().error
    bank.start()
    wait_until(lambda: take_in(inbox) == MANY, what="all of it")
    assert values(things) == list(range(MANY))


@pytest.mark.slow
def test_a_network_that_is_silent_in_the_middle_of_a_batch_is_said_and_gives_all_of_it_later(things, make_inbox, bank):
    add(bank, *range(MANY))
    inbox = make_inbox(things, source=SOURCE, transform=value_of)
    with closing(SilentProxy(f"nats://127.0.0.1:{bank.port}")) as proxy:
        options = {**bank.options, **bank.at(proxy.port), "timeout": 1.0}
        with override_settings(DJANGO_EVENTS={"BROKERS": {"nats": options}}):
            proxy.vanish_at(f'{{"seq":{MIDDLE}}}')
            assert take_in(inbox) == 0
            assert proxy.vanished.is_set()
            assert "no answer within 1 s" in row().error
            proxy.come_back()
            wait_until(lambda: take_in(inbox) == MANY, what="all of it")
    assert values(things) == list(range(MANY))
