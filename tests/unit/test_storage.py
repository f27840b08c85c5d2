"""Records in a store of objects, whose streams make an object when they are closed."""

from typing import Any

import pytest

from django_events.spark.exporting.storage import ABORTABLE, OfObjects


class Store:
    """Objects that are there once their stream is closed, unless their name is taken."""

    def __init__(self, *, abortable: bool) -> None:
        self.objects: dict[str, bytes] = {}
        self.abortable = abortable
        self.fails = False
        self.aborted = 0

    def exists(self, place: str) -> bool:
        return place in self.objects


class Stream:
    def __init__(self, store: Store, place: str) -> None:
        self._store, self._place, self._written = store, place, b""

    def write(self, data: bytearray) -> None:
        if self._store.fails:
            self._written = bytes(data[:3])
            raise OSError("the connection broke")
        self._written = bytes(data)

    def hasCapability(self, name: str) -> bool:
        return name == ABORTABLE and self._store.abortable

    def abort(self) -> None:
        self._store.aborted += 1
        raise OSError("nothing to abort")

    def close(self) -> None:
        if self._place in self._store.objects:
            raise FileExistsError(self._place)
        self._store.objects[self._place] = self._written


class Objects(OfObjects):
    def __init__(self, store: Store) -> None:
        self._files: Any = store
        self._path: Any = str

    def _made_once(self, place: Any) -> Any:
        return Stream(self._files, place)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("abortable", [True, False])
def test_a_record_that_could_not_be_written_leaves_its_name_free(abortable: bool) -> None:
    store = Store(abortable=abortable)
    place = Objects(store)
    store.fails = True

    with pytest.raises(OSError, match="the connection broke"):
        place.add("journal/1/record.json", '{"layout": 2}', "draft")

    assert store.objects == {}
    assert store.aborted == abortable
    store.fails = False
    assert place.add("journal/1/record.json", '{"layout": 2}', "draft")
    assert not place.add("journal/1/record.json", "another", "draft")
    assert store.objects == {"journal/1/record.json": b'{"layout": 2}'}
