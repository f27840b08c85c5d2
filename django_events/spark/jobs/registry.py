"""The jobs by name: what each reads, and what one may say to it. PySpark isn't needed to know that."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def listed(text: str) -> tuple[str, ...]:
    """`a, b` as a and b."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, kw_only=True)
class Option:
    """An argument of a job's function, and how its text is read. Without a default it has to be said."""

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function from these DataFrames, in this order, to a DataFrame."""

    name: str
    help: str
    reads: tuple[str, ...] = ("events",)
    columns: tuple[str, ...] = ()  # of the events
    options: tuple[Option, ...] = ()

    @property
    def reads_values(self) -> bool:
        """Whether it looks into values, which may have versions."""
        return "value" in self.columns

    @property
    def function(self) -> "Callable[..., DataFrame]":
        function: Callable[..., DataFrame] = getattr(import_module(f"{__package__}.{self.name}"), self.name)
        return function


EVERY = Option(name="every", default="1 hour", help="How long a bucket is, like '15 minutes' or '1 day'.")

COUNTS = Job(
    name="counts",
    help="How many events there were, by time, topic and type.",
    columns=("topic", "type", "published_at"),
    options=(EVERY,),
)
WINDOWS = Job(
    name="windows",
    help="Sum, average and extremes of a number in the value, by time.",
    columns=("topic", "type", "key", "value", "published_at"),
    options=(
        Option(name="field", required=True, help="Where the number is in the value, like '$.total'."),
        EVERY,
        Option(name="slide", help="Begin a window so often, which then overlap; by default each where one ends."),
        Option(name="by", type=listed, default=("type",), help="What to group by: some of topic, type and key."),
    ),
)
SESSIONS = Job(
    name="sessions",
    help="When each key was active, until a pause.",
    columns=("key", "published_at"),
    options=(Option(name="gap", default="30 minutes", help="The pause that ends a session."),),
)
FUNNEL = Job(
    name="funnel",
    help="How many keys got how far in a row of steps.",
    columns=("type", "key", "published_at"),
    options=(
        Option(
            name="steps",
            type=listed,
            required=True,
            help="Types of events in their order, like order.placed,order.paid.",
        ),
        Option(name="within", default="1 day", help="How long after the first step the others count."),
    ),
)
LATENCY = Job(
    name="latency",
    help="How long events took from being published to being handled, by consumer.",
    reads=("history", "samples", "events"),
    columns=("topic", "offset", "published_at"),
)
LAG = Job(name="lag", help="How many events each consumer has before it.", reads=("positions",))
DEAD_LETTERS = Job(
    name="dead_letters", help="What consumers gave up on, like errors together.", reads=("dead_letters",)
)

ALL = (COUNTS, WINDOWS, SESSIONS, FUNNEL, LATENCY, LAG, DEAD_LETTERS)
JOBS = {job.name: job for job in ALL}
