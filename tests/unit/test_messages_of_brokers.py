"""Shorter ways to what a broker's message says, which most messages go: they give what the long way gives."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_events.bridges.inboxes.jetstream_source import headers_of, parsed_headers
from django_events.bridges.inboxes.sources import InboxMessage, by_name
from django_events.bridges.relays.targets import RelayMessage, Route

VERSION = b"NATS/1.0\r\n"
PLAIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=":"), min_size=1)
LINES = st.lists(st.tuples(NAMES, PLAIN)).map(
    lambda named: "".join(f"{name}:{text}\r\n" for name, text in named).encode() + b"\r\n"
)
PIECES = (b"A", b"a", b":", b" ", b"\t", b"\r\n", b"\n", b"\r", b"From ", b"\xc3\xa9", b"\0")
ANY_LINES = st.lists(st.sampled_from(PIECES))


@given(LINES | st.binary() | ANY_LINES.map(b"".join))
@example(b"ce-id: orders/1\r\nCE-Type:  made \r\nce-subject:\r\n\r\n")
@example(b"A: 1\r\na: 2\r\nA: 3\r\n\r\n")
@example(b"A: 1\r\n folded\r\n\r\n")
@example(b"A: 1\r\n\r\nB: 2\r\n\r\n")
@example(b"From me\r\nA: 1\r\n\r\n")
@example("A: ü\r\n\r\n".encode())
@example(b"")
def test_headers_of_nats_are_read_as_its_client_reads_them(lines):
    assert headers_of(VERSION + lines) == parsed_headers(lines)


def test_fields_of_one_name_are_told_apart():
    assert by_name([("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4")]) == {
        "a (2)": b"1",
        "b": b"2",
        "a (1)": b"3",
        "a": b"4",
    }
    assert by_name([("a", b"1"), ("b", b"2")]) == {"a": b"1", "b": b"2"}


def test_what_a_message_says_is_kept_out_of_logs():
    taken = InboxMessage("1-0", "bank", {"id": "1-0"}, "k", b"secret", {"ce_x": "secret"}, {"data": b"secret"})
    sent = RelayMessage(7, "bank/7", Route("t"), "k", {"type": "secret"}, {"traceparent": "secret"}, b"secret")
    for message in (taken, sent):
        assert "secret" not in repr(message)
        assert "'k'" in repr(message)


def test_a_message_that_has_no_fields_shares_nothing_that_can_be_changed():
    one, other = (InboxMessage(number, "bank", number) for number in ("1", "2"))
    assert one.fields == one.headers == other.fields == {}
    for shared in (one.fields, one.headers):
        with pytest.raises(TypeError):
            shared["a"] = b"1"
