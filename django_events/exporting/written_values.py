"""What a journal says of the values in its files: whether they are text or typed columns, and the types of these."""

from collections.abc import Mapping
from typing import Any

from django_events.exceptions import Refused
from django_events.exporting.file_columns import FileColumns, told
from django_events.reading.typed.columns import DATA
from django_events.reading.typed.evolution import as_json, of_json


class WrittenValues:
    """How the values of a folder are kept, once and for all; and the fields that `data` has had there by now."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._kind = ""  # what values are typed as; nothing where they are text
        self._data: dict[str, Any] = {}

    @property
    def kind(self) -> str:
        """What the values are typed as; nothing where they are text."""
        return self._kind

    def refuse_other(self, kind: str, *, is_new: bool) -> None:
        """Refused if the existing files have their values in other columns than this run has."""
        if is_new:
            self._kind = kind
        elif self._kind != kind:
            raise Refused(
                f"{self._place} tells of files whose values are {told(self._kind)}. This run has them {told(kind)}. "
                "Take another folder."
            )

    def after(self, name: str, columns: FileColumns, place: str) -> FileColumns:
        """The columns for the next files of a name: with the fields that the existing ones have."""
        if name in self._data:
            columns = columns.after(of_json(self._data[name]), place)
        self._data[name] = as_json(columns.schema.field(DATA).type)
        return columns

    def content(self) -> dict[str, Any]:
        """What a version of the journal says; nothing where values are text."""
        return {"values": self._kind, "data": self._data} if self._kind else {}

    def take(self, record: Mapping[str, Any]) -> None:
        """Read that back; raises KeyError, TypeError, ValueError or AttributeError if it can't be."""
        self._kind, self._data = record.get("values", ""), record.get("data", {})
        if type(self._kind) is not str:
            raise ValueError(record)
        for said in self._data.values():
            of_json(said)
