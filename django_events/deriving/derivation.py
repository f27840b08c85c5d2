"""What a kind of derived table must be able to do, so that it can be rebuilt: roll-ups and projections can.

derivation_of(declared).fold(using, rows, after={"orders": 0}, until={"orders": 1_042})
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from django_events import declarations, models


class Failed(NamedTuple):
    """An event that could not be folded."""

    topic: str
    id: int
    error: str

    @property
    def address(self) -> str:
        """`orders/1042`."""
        return f"{self.topic}/{self.id}"


class Folded(Protocol):
    """Up to which id of each topic events are folded now, how many that were, and the one that could not be."""

    @property
    def reached(self) -> dict[str, int]: ...

    @property
    def events(self) -> int: ...

    @property
    def failed(self) -> Failed | None: ...


class Derivation(Protocol):
    """How one kind of derived table is filled."""

    def table(self, using: str) -> str:
        """The name of the table that is served in a database."""

    @property
    def fingerprint(self) -> str:
        """Of what fills it. A rebuild that was begun with another one begins again."""

    def make(self, using: str, table: tuple[str, str]) -> None:
        """Make an empty table of this name in a schema, for what is declared now. In the caller's transaction."""

    def fold(
        self, using: str, rows: Sequence[models.Consumer], *, after: Mapping[str, int], until: Mapping[str, int]
    ) -> Folded:
        """Fold the next events behind some ids, up to others, into the table that its name leads to now.

        As many as fit into one transaction, which is the caller's; at least one, if there is any. If one can't be
        folded, those before it are, and nothing of it is left.
        """

    def changed_over(self, using: str) -> None:
        """Write down that the new table is served from now on, in the transaction of the change-over.

        Its name leads to it already. Rows that those who use the table have locked are waited for here, before it is.
        """


def table_of(using: str, declared: declarations.DeclaredConsumer) -> str:
    """The name of the table that a derived consumer keeps in a database."""
    return derivation_of(declared).table(using)


def derivation_of(declared: declarations.DeclaredConsumer) -> Derivation:
    derivation: Derivation = declared.derivation()  # type: ignore[attr-defined]  # those that are derived have it
    return derivation
