"""A batch to Redis is a transaction: all of it is added, or what kept it from that is said."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from django.test import override_settings

from django_events import redis_stream
from django_events.bridges.relays.redis_streams import PIECE, RedisBridge, command, in_pieces
from django_events.bridges.relays.targets import RelayMessage, Route, TargetUnavailable

pytestmark = pytest.mark.requirement("X20")


def messages(*ids):
    return [
        RelayMessage(one, f"things/{one}", Route("s", "s"), None, {"id": f"things/{one}"}, {}, b"{}") for one in ids
    ]


@contextmanager
def opened(**options) -> Iterator[RedisBridge]:
    settings = override_settings(DJANGO_EVENTS={"BROKERS": {"redis": options}})
    with settings, closing(RedisBridge(redis_stream("s"))) as bridge:
        bridge.open()
        yield bridge


@contextmanager
def answering(refuse: bytes) -> Iterator[int]:
    """A server that goes on with a transaction of which it has refused a command, as no Redis does; its port."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as lines:
            queued = 0
            while line := lines.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(lines.readline()[1:])
                    words.append(lines.read(length + 2)[:-2])
                answer = b"+OK\r\n"
                if words[0] == b"MULTI":
                    queued = 0
                elif words[0] == b"EXEC":
                    answer = b"*%d\r\n" % queued + b"+1-0\r\n" * queued
                elif refuse in words:
                    answer = b"-ERR not now\r\n"
                elif words[0] == b"XADD":
                    answer, queued = b"+QUEUED\r\n", queued + 1
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
    thread.join()


def test_a_command_that_is_refused_is_not_taken_for_done_where_the_others_are():
    refused = pytest.raises(TargetUnavailable, match="ResponseError: not now")
    with answering(b"2-0") as port, opened(host="127.0.0.1", port=port, protocol=2) as bridge, refused:
        bridge.send(messages(1, 2, 3))


def test_a_transaction_that_is_not_done_at_all_is_an_outage(redis):
    with opened(**redis.options) as bridge, redis.client() as other:
        bridge._client.execute_command("WATCH", "watched")
        other.set("watched", 1)
        with pytest.raises(TargetUnavailable, match="the transaction was not answered as one"):
            bridge.send(messages(1, 2))
        assert redis.entries() == []


@pytest.mark.parametrize(
    ("right", "said"), [("-multi", "'multi' command"), ("-exec", "'exec' command"), ("-xadd", "'xadd' command")]
)
def test_a_right_that_is_missing_is_said_and_nothing_is_added(redis, right, said):
    with redis.client() as other:
        other.execute_command("ACL", "SETUSER", "lesser", "on", ">lesser", "~*", "+@all", right)
        try:
            refused = pytest.raises(TargetUnavailable, match=f"no permissions.*{said}")
            with refused, opened(**redis.options, username="lesser", password="lesser") as bridge:
                bridge.send(messages(1, 2))
        finally:
            other.execute_command("ACL", "DELUSER", "lesser")
    assert redis.entries() == []


def test_a_batch_is_sent_in_pieces_each_of_which_has_the_whole_timeout():
    commands = [command("XADD", "s", str(n), "x" * 900) for n in range(100)]
    pieces = list(in_pieces(commands))
    assert b"".join(pieces) == b"".join(commands)
    assert len(pieces) > 4
    assert all(len(piece) < PIECE + len(commands[0]) + 2 for piece in pieces)
    assert list(in_pieces([])) == []


def test_a_command_says_how_many_bytes_follow_and_not_how_many_characters():
    assert command("XADD", "Ä", "\r\nÖ") == b"*3\r\n$4\r\nXADD\r\n$2\r\n\xc3\x84\r\n$4\r\n\r\n\xc3\x96\r\n"
