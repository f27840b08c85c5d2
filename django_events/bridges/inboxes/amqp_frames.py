"""Messages of RabbitMQ whose properties amqp can't decode, as messages that say so.

    connected(options, seconds, frame_handler=tolerant)

The server takes any bytes as a text, and any number as a time. amqp decodes what it reads before anything of ours sees
it, and the connection is lost with the error: the message would come again, first of all, for ever.
"""

from collections.abc import Callable
from struct import pack
from typing import Any

METHOD, HEADER = 1, 2  # types of frames: what the server does, and a message's properties
DELIVERY = b"\x00\x3c\x00\x3c"  # with which the frame of a delivery begins
FIXED = 12  # bytes in front of them: class, weight, and the size of the body
HAS_HEADERS = 0x2000  # of the flags that say which properties there are
REASON = "unreadable"
RAW = "unreadable-properties"

Frame = tuple[int, int, Any]


def tolerant(connection: Any, callback: Any) -> Callable[[Frame], bool]:
    """What amqp does with a frame. Of properties that it can't decode it is given a header that says so, and these."""
    from amqp.method_framing import frame_handler

    handle = frame_handler(connection, callback)

    def on_frame(frame: Frame) -> bool:
        kind, channel, found = frame
        whole = bytes(found)
        if kind == METHOD and whole.startswith(DELIVERY):
            return bool(handle((kind, channel, _delivery(whole))))
        try:
            return bool(handle(frame))
        except Exception as error:
            if kind != HEADER:
                raise
            reason = f"RabbitMQ's client can't decode its properties: {type(error).__name__}"
            return bool(handle((kind, channel, whole[:FIXED] + _properties(reason, whole[FIXED:]))))

    return on_frame


def _delivery(whole: bytes) -> bytes:
    """A delivery whose routing key is a text: `?` stands for what is none."""
    at = len(DELIVERY)
    at += 1 + whole[at]  # the consumer
    at += 9  # the message's number, and whether it was delivered before
    at += 1 + whole[at]  # the exchange
    key = whole[at + 1 :]
    try:
        key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return whole[: at + 1] + key.decode("ascii", "replace").encode("ascii", "replace")
    return whole


def _properties(reason: str, raw: bytes) -> bytes:
    """Properties of a message with two headers alone, as AMQP 0-9-1 writes them: a text, and bytes."""
    table = b"".join(
        pack(">B", len(name)) + name.encode() + kind + pack(">I", len(value)) + value
        for name, kind, value in ((REASON, b"S", reason.encode()), (RAW, b"x", raw))
    )
    return pack(">HI", HAS_HEADERS, len(table)) + table
