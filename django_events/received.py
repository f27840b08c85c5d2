"""The events that handlers get."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from django_events.event_columns import EVENT

M = TypeVar("M")
Model = type[M]  # named outside of the class, where `type` is an event's


class ReceivedEvent:
    """An event as a handler gets it. It can't be changed; values, metadata and times are decoded when they are read.

    The columns come as the database sends them, JSON and times as text, in the order of `EVENT`.
    """

    __slots__ = ("_columns", "_data", "_metadata", "_origin", "_value", "attempt")

    attempt: int
    _origin: tuple[str, str, str]  # topic, consumer and database, which all events of a batch have in common
    _columns: Sequence[Any]
    _value: Any
    _data: Any
    _metadata: dict[str, Any]

    def __init__(
        self, topic: str, columns: Sequence[Any], *, consumer: str = "", attempt: int = 1, database: str = ""
    ) -> None:
        _set_origin(self, (topic, consumer, database))
        _set_columns(self, columns)
        _set_attempt(self, attempt)

    @classmethod
    def of_rows(
        cls, rows: Iterable[Sequence[Any]], *, topic: str, consumer: str, database: str
    ) -> "list[ReceivedEvent]":
        """The events of these rows in their first attempt. They are made by the ten thousand: no call for each."""
        origin, events = (topic, consumer, database), []
        for row in rows:
            event = _new(cls)
            _set_origin(event, origin)
            _set_columns(event, row)
            _set_attempt(event, 1)
            events.append(event)
        return events

    @property
    def topic(self) -> str:
        return self._origin[0]

    @property
    def consumer(self) -> str:
        return self._origin[1]

    @property
    def database(self) -> str:
        return self._origin[2]

    @property
    def id(self) -> int:
        """1, 2, 3 … in the topic."""
        return self._columns[0]  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        return self._columns[1]  # type: ignore[no-any-return]

    @property
    def number(self) -> int:
        """1, 2, 3 … in the partition."""
        return self._columns[2]  # type: ignore[no-any-return]

    @property
    def type(self) -> str:
        return self._columns[3]  # type: ignore[no-any-return]

    @property
    def key(self) -> str | None:
        return self._columns[4]  # type: ignore[no-any-return]

    @property
    def value(self) -> Any:
        try:
            return self._value
        except AttributeError:
            _set_value(self, _decode(self._columns[5]))
            return self._value

    @property
    def data(self) -> Any:
        """The value as the model that `topic(schemas=…)` has for its type, of the newest version.

        An older version is upcast. UnfitEvent says what doesn't fit. None where there is no payload.
        """
        with suppress(AttributeError):  # it is made below, outside of this: an error there is not one of this
            return self._data
        # The room above knows the schemas, so it is entered with the call.
        _set_data(self, import_module("django_events.contracts.reading").data_of(self))
        return self._data

    def data_as(self, model: Model[M]) -> M:
        """`data` of this model, for type checkers; UnfitEvent if it is of another one, or if there is no payload."""
        data = self.data
        if not isinstance(data, model):
            raise import_module("django_events.contracts.reading").of_another_model(self, data, model)
        return data

    @property
    def body(self) -> bytes | None:
        body = self._columns[6]
        return body if body is None else bytes(body)

    @property
    def metadata(self) -> dict[str, Any]:
        try:
            return self._metadata
        except AttributeError:
            _set_metadata(self, _decode(self._columns[7]))
            return self._metadata

    @property
    def erased(self) -> bool:
        """Whether its payload was erased: value and body are None then, and a JSON null is not meant."""
        return self._columns[5] is None and self._columns[6] is None

    @property
    def published_at(self) -> datetime:
        """When the publisher's statement ran."""
        return _moment(self._columns[8])

    @property
    def logged_at(self) -> datetime:
        """When the transfer gave it its id; never decreases within a topic."""
        return _moment(self._columns[9])

    @property
    def address(self) -> str:
        """`orders/1042`: the same for every attempt, to recognise an event by."""
        return f"{self.topic}/{self.id}"

    @property
    def columns(self) -> Sequence[Any]:
        """All that is stored of it, JSON as text, in the order of `EVENT`."""
        return self._columns[: len(EVENT)]

    def with_attempt(self, attempt: int) -> "ReceivedEvent":
        """The same event in another attempt."""
        return _made(type(self), self.topic, self._columns, self.consumer, attempt, self.database)

    def in_partition(self, partition: int) -> "ReceivedEvent":
        """The same event as one of another partition."""
        columns = (self._columns[0], partition, *self._columns[2:])
        return _made(type(self), self.topic, columns, self.consumer, self.attempt, self.database)

    def forget(self) -> None:
        """Make `value`, `data` and `metadata` anew when they are read next: a handler may have changed what it got."""
        for forget_decoded in (_forget_value, _forget_data, _forget_metadata):
            with suppress(AttributeError):
                forget_decoded(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"An event can't be changed: {name} of {self!r}.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"An event can't be changed: {name} of {self!r}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made like the first one: for another process, or a log."""
        columns = tuple(bytes(column) if isinstance(column, memoryview) else column for column in self._columns)
        return _made, (type(self), self.topic, columns, self.consumer, self.attempt, self.database)

    def __repr__(self) -> str:
        return f"<event {self.address} {self.type or 'without type'}, key {self.key!r}, attempt {self.attempt}>"


# The slots' own setters bypass `__setattr__`, at no cost.
_new = object.__new__
_setters: dict[str, Any] = {name: vars(ReceivedEvent)[name].__set__ for name in ReceivedEvent.__slots__}
_set_origin = _setters["_origin"]
_set_attempt = _setters["attempt"]
_set_columns = _setters["_columns"]
_set_value = _setters["_value"]
_set_data = _setters["_data"]
_set_metadata = _setters["_metadata"]
_forget_value: Any = vars(ReceivedEvent)["_value"].__delete__
_forget_data: Any = vars(ReceivedEvent)["_data"].__delete__
_forget_metadata: Any = vars(ReceivedEvent)["_metadata"].__delete__


def _made(
    kind: type[ReceivedEvent], topic: str, columns: Sequence[Any], consumer: str, attempt: int, database: str = ""
) -> ReceivedEvent:
    return kind(topic, columns, consumer=consumer, attempt=attempt, database=database)


def _moment(column: Any) -> datetime:
    return datetime.fromisoformat(column).astimezone(UTC) if isinstance(column, str) else column


def _decode(column: Any) -> Any:
    return json.loads(column) if isinstance(column, str) else column
