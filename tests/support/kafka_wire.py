"""As much of Kafka's protocol as the model broker speaks: one version of each request, and record batches.

A shape says which values follow each other: letters of `struct` for numbers, `s` for a string, `r` for bytes, both of
which may be null, and an array in brackets. In flexible versions lengths are varints, and structures end with tags.
"""

import struct
from enum import IntEnum
from io import BytesIO
from typing import Any, NamedTuple

Shape = list[Any]


class ErrorCode(IntEnum):
    """Kafka's error codes."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90


def shape(text: str) -> Shape:
    """`s[ih]` is ["s", ["i", "h"]]."""
    open_arrays: list[Shape] = [[]]
    for letter in text:
        if letter == "[":
            open_arrays.append([])
        elif letter == "]":
            inner = open_arrays.pop()
            open_arrays[-1].append(inner)
        else:
            open_arrays[-1].append(letter)
    return open_arrays[0]


class Api(NamedTuple):
    """One kind of request, in the only version that is spoken: clients take the newest that both sides know."""

    key: int
    version: int
    request: Shape
    response: Shape
    flexible: bool = False


APIS = {
    "Produce": Api(0, 7, shape("shi[s[ir]]"), shape("[s[ihqqq]]i")),
    "Fetch": Api(1, 4, shape("iiiib[s[iqi]]"), shape("i[s[ihqq[qq]r]]")),
    "ListOffsets": Api(2, 2, shape("ib[s[iq]]"), shape("i[s[ihqq]]")),
    "Metadata": Api(3, 4, shape("[s]?"), shape("i[isis]si[hs?[hii[i][i]]]")),
    "OffsetCommit": Api(8, 2, shape("sisq[s[iqs]]"), shape("[s[ih]]")),
    "OffsetFetch": Api(9, 7, shape("s[s[i]]?"), shape("i[s[iqish]]h"), flexible=True),
    "FindCoordinator": Api(10, 2, shape("sb"), shape("ihsisi")),
    "InitProducerId": Api(22, 4, shape("siqh"), shape("ihqh"), flexible=True),
    "AddPartitionsToTxn": Api(24, 0, shape("sqh[s[i]]"), shape("i[s[ih]]")),
    "AddOffsetsToTxn": Api(25, 0, shape("sqhs"), shape("ih")),
    "EndTxn": Api(26, 1, shape("sqh?"), shape("ih")),
    "TxnOffsetCommit": Api(28, 3, shape("ssqhiss[s[iqis]]"), shape("i[s[ih]]"), flexible=True),
}
API_VERSIONS = Api(18, 3, [], shape("h[hhh]i"), flexible=True)
NAMES = {api.key: name for name, api in APIS.items()} | {API_VERSIONS.key: "ApiVersions"}


class WireReader:
    """Takes values from bytes, one after the other."""

    flexible = False

    def __init__(self, data: bytes) -> None:
        self._data = BytesIO(data)

    def number(self, letter: str) -> Any:
        return struct.unpack(">" + letter, self._data.read(struct.calcsize(">" + letter)))[0]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte: int = self.number("B")
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self._data.read(self.varint())

    def value(self, kind: Any) -> Any:
        if not isinstance(kind, list) and kind not in "sr":
            return self.number(kind)
        length = self.varint() - 1 if self.flexible else self.number("h" if kind == "s" else "i")
        if length < 0:
            return None
        if isinstance(kind, list):
            return [self.values(kind) if len(kind) > 1 else self.value(kind[0]) for _ in range(length)]
        data = self._data.read(length)
        return data.decode() if kind == "s" else data

    def values(self, kinds: Shape) -> list[Any]:
        """A structure: its values, without its tags."""
        found = [self.value(kind) for kind in kinds]
        if self.flexible:
            self.tags()
        return found


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def encode(kinds: Shape, values: Any, *, flexible: bool = False) -> bytes:
    """A structure; one with a single value is only ever that value, in an array."""

    def length(kind: Any, number: int) -> bytes:
        return varint(number + 1) if flexible else struct.pack(">h" if kind == "s" else ">i", number)

    parts = []
    for kind, value in zip(kinds, values, strict=True):
        if not isinstance(kind, list) and kind not in "sr":
            parts.append(struct.pack(">" + kind, value))
        elif value is None:
            parts.append(length(kind, -1))
        elif isinstance(kind, list):
            parts.append(length(kind, len(value)))
            if len(kind) > 1:
                parts += [encode(kind, one, flexible=flexible) for one in value]
            else:
                parts += [encode(kind, [one]) for one in value]
        else:
            data = value.encode() if kind == "s" else value
            parts += [length(kind, len(data)), data]
    return b"".join(parts) + (b"\0" if flexible else b"")


BATCH = struct.Struct(">qiibIhiqqqhii")
TRANSACTIONAL, CONTROL = 0x10, 0x20  # attributes of a batch


class BatchHeader(NamedTuple):
    """What is ahead of the records of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    newest_timestamp: int
    producer_id: int
    epoch: int
    base_sequence: int
    records: int

    @classmethod
    def of(cls, data: bytes) -> "BatchHeader":
        return cls(*BATCH.unpack_from(data))

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum; slow, for the few bytes of a marker."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def marker(*, producer_id: int, epoch: int, commit: bool, milliseconds: int) -> bytes:
    """The batch that says in a partition how a transaction ended."""
    key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
    record = bytes([0, 0, 0, 2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    checked = struct.pack(
        ">hiqqqhii", TRANSACTIONAL | CONTROL, 0, milliseconds, milliseconds, producer_id, epoch, -1, 1
    )
    checked += bytes([2 * len(record)]) + record
    return struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked)) + checked
