"""What one may say to the source and the sink: every option is known by name, and refused by name."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from django_events.exceptions import Invalid, did_you_mean
from django_events.exporting.layout import parse_size
from django_events.matching import condition, decides
from django_events.reading.columns import COLUMNS, Column
from django_events.reading.dsn import Connection, Dsn, fetch
from django_events.reading.offsets import EARLIEST, LATEST, Boundary
from django_events.reading.rows import RangeReader
from django_events.reading.topics import TopicChoice
from django_events.reading.typed.columns import NAMES, TYPED, TypedColumns
from django_events.reading.typed.descriptions import FOLDER, SchemaSet
from django_events.reading.typed.ranges import TypedRangeReader
from django_events.spark.reading.tables import TABLES
from django_events.statements import shared

ADDRESS = ("dsn", "databaseUrl")
SUBSCRIPTIONS = ("subscribe", "subscribePattern")
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
FILTERS = ("types", "keys", "where")
TYPING = ("schema", "schemas", "upcasters")
READING = (
    *(*ADDRESS, *SUBSCRIPTIONS, *STARTS, *FILTERS, *TYPING),
    *("failOnDataLoss", "minPartitions", "columns", "fetchSize"),
)
BATCH = (*READING, *ENDS, "pushdown", "table")
STREAM = (*READING, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "consumer")
SINK = (*ADDRESS, "topic", "sink", "batchId")
# Spark hands its own options of a query on to the sink.
OF_SPARK = ("checkpointLocation", "queryName", "path")

FETCH_SIZE = 100_000
EVERY_TYPE = ("*",)
NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Which events are read, in the words of a consumer."""

    types: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: str | None = None
    metadata: ClassVar[None] = None  # filters of consumers have more
    vars: ClassVar[None] = None

    def __bool__(self) -> bool:
        return (self.types, self.keys, self.where) != (None, None, None)

    def refuse_unusable(self, connection: Connection) -> None:
        """Invalid if PostgreSQL can't read the predicate, or if nothing would match it."""
        if self.where is None:
            return
        try:
            answers = fetch(connection, shared.try_predicate, where=self.where, vars="{}")
        except psycopg.DatabaseError as error:
            problem = str(error).strip().splitlines()[0]
            raise Invalid(
                f"Option 'where' is {self.where!r}, which PostgreSQL can't use as a jsonpath predicate: {problem}."
            ) from None
        if not decides(self.where, answers):
            raise Invalid(
                f"Option 'where' is {self.where!r}, which is neither true nor false for any value, so no event would "
                "match. A predicate compares: '$.total > 100', '$.paid == true'."
            )


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, from where to where, and how."""

    dsn: Dsn
    subscription: TopicChoice
    start: Boundary
    end: Boundary
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    min_partitions: int
    fetch_size: int
    filter: EventFilter
    table: str | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    consumer: str | None
    typed: TypedColumns | None = None

    def reader(self) -> RangeReader | TypedRangeReader:
        """What reads ranges as these options say."""
        reader = RangeReader(
            dsn=self.dsn,
            columns=self.columns,
            fetch_size=self.fetch_size,
            fail_on_data_loss=self.fail_on_data_loss,
            condition=condition(self.filter) if self.filter else None,
        )
        return reader if self.typed is None else TypedRangeReader.of(reader, self.typed)

    def plain_reader(self) -> RangeReader:
        """What reads them before they are filtered and typed: by this they are measured."""
        reader = self.reader()
        return replace(reader.reader if isinstance(reader, TypedRangeReader) else reader, condition=None)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where to publish, and under which name a batch is remembered."""

    dsn: Dsn
    topic: str | None
    sink: str | None
    batch_id: int | None


def for_batch(options: Mapping[str, str]) -> ReadOptions:
    return _reading(_Given(options, BATCH, "a batch read"), start="earliest")


def for_stream(options: Mapping[str, str]) -> ReadOptions:
    return _reading(_Given(options, STREAM, "a stream"), start="latest")


def for_sink(options: Mapping[str, str]) -> SinkOptions:
    given = _Given(options, SINK, "a sink", also=OF_SPARK)
    sink = given.name("sink")
    batch_id = given.number("batchId", least=0)
    if batch_id is not None and sink is None:
        raise Invalid("Option 'batchId' needs option 'sink': the name under which the batch is remembered.")
    return SinkOptions(dsn=given.dsn(), topic=given.text("topic"), sink=sink, batch_id=batch_id)


def columns_of(options: Mapping[str, str]) -> dict[str, Column]:
    """The columns that are asked for; they are the schema."""
    given = _Given(options, {*BATCH, *STREAM}, "a read")
    if (table := given.one_of_names("table", TABLES)) is not None:
        return TABLES[table].columns
    typed = given.typed()
    types = {} if typed is None else typed.types
    known = {**COLUMNS, **{name: Column(arrow, "") for name, arrow in types.items()}}
    return {name: known[name] for name in given.columns(typed)}


def _reading(given: "_Given", *, start: str) -> ReadOptions:
    table = given.one_of_names("table", TABLES)
    if table is not None:
        given.refuse_beside("table", *(name for name in BATCH if name not in ("table", *ADDRESS)))
    typed = given.typed()
    return ReadOptions(
        dsn=given.dsn(),
        subscription=given.subscription(needed=table is None),
        start=given.boundary(STARTS, otherwise=start),
        end=given.boundary(ENDS, otherwise="latest"),
        columns=given.columns(typed),
        fail_on_data_loss=given.flag("failOnDataLoss", otherwise=True),
        min_partitions=given.number("minPartitions", least=1) or 1,
        fetch_size=given.number("fetchSize", least=1) or FETCH_SIZE,
        filter=given.filter(typed),
        table=table,
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger", least=1),
        max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
        consumer=given.name("consumer"),
        typed=typed,
    )


class _Given:
    """The options as they came: names in any case, values as text."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], reader: str, also: Iterable[str] = ()) -> None:
        self._values = {name.lower(): value for name, value in dict(options).items()}
        names = sorted(known)
        everywhere = {name.lower() for name in (*BATCH, *STREAM, *SINK)}
        for name in self._values.keys() - {name.lower() for name in (*names, *also)}:
            if name == "path":
                raise Invalid("An event log has no path: call load() and save() without one.")
            spelled = next((k for k in (*BATCH, *STREAM, *SINK) if k.lower() == name), name)
            if name in everywhere:
                raise Invalid(f"Option {spelled!r} is not for {reader}. It takes {', '.join(names)}.")
            raise Invalid(f"There is no option {spelled!r}. {did_you_mean(spelled, names)}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def dsn(self) -> Dsn:
        option = self._only_one(ADDRESS, "The address of the database")
        if option is None:
            raise Invalid(
                "Option 'dsn' is missing, expected the address of the database: 'postgresql://user:password@host/name'."
            )
        return Dsn(self._values[option.lower()], option=option)

    def subscription(self, *, needed: bool) -> TopicChoice:
        option = self._only_one(SUBSCRIPTIONS, "What to read")
        value = self.text(option) if option else None
        if value is None:
            if needed:
                raise Invalid(
                    "Option 'subscribe' is missing, expected topics like 'orders, payments'; or 'subscribePattern', "
                    "a regular expression for the whole of a name, or 'table'."
                )
            return TopicChoice()
        if option == "subscribePattern":
            try:
                re.compile(value)
            except re.error as error:
                raise Invalid(
                    f"Option 'subscribePattern' is {value!r}, expected a regular expression: {error}."
                ) from None
            return TopicChoice(pattern=value)
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not names:
            raise Invalid(f"Option 'subscribe' is {value!r}, expected names of topics like 'orders, payments'.")
        return TopicChoice(names=names)

    def boundary(self, options: tuple[str, ...], *, otherwise: str) -> Boundary:
        option = self._only_one(options, "One end of what to read")
        if option is None:
            return Boundary(point=EARLIEST if otherwise == "earliest" else LATEST)
        return Boundary.parsed(option, self._values[option.lower()].strip())

    def listed(self, name: str, known: Iterable[str]) -> tuple[str, ...]:
        value = self.text(name)
        if value is None:
            return ()
        wanted = tuple(part.strip() for part in value.split(",") if part.strip())
        for part in wanted:
            if part not in known:
                raise Invalid(f"Option {name!r} has {part!r}. {did_you_mean(part, known)}")
        if len(set(wanted)) < len(wanted) or not wanted:
            raise Invalid(f"Option {name!r} is {value!r}, expected each name once, separated by commas.")
        return wanted

    def one_of_names(self, name: str, known: Iterable[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise Invalid(f"Option {name!r} is {value!r}. {did_you_mean(value, known)}")
        return value

    def columns(self, typed: TypedColumns | None) -> tuple[str, ...]:
        """The columns to read, in their order: all of them, if none is named."""
        every = tuple(COLUMNS) if typed is None else typed.names()
        if self.text("columns") in (None, TYPED):
            return every
        named = self.listed("columns", (*COLUMNS, *NAMES, TYPED))
        return tuple(dict.fromkeys(one for name in named for one in (NAMES if name == TYPED else (name,))))

    def typed(self) -> TypedColumns | None:
        """How values are made columns, if they are."""
        schema, named = self.text("schema"), re.split(r"[\s,]+", self.text("columns") or "")
        if schema is None and not {TYPED, *NAMES}.intersection(named):
            for name in ("schemas", "upcasters"):
                if self.text(name) is not None:
                    raise Invalid(f"Option {name!r} goes with columns='typed', or with a schema like 'order.placed@2'.")
            return None
        said = self.text("schemas") or FOLDER
        subscribed = self.subscription(needed=True)
        schemas = SchemaSet.of_text(said) if said.startswith("{") else SchemaSet.in_folder(Path(said), subscribed.has)
        return schemas.chosen(schema or TYPED, upcasters=self.listed_modules("upcasters"))

    def listed_modules(self, name: str) -> tuple[str, ...]:
        modules = tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise Invalid(f"Option {name!r} has {module!r}, expected modules like 'shop.upcasters'.")
        return modules

    def filter(self, typed: TypedColumns | None) -> EventFilter:
        """What the server leaves out; events of other types where one is read by its schema."""
        if self.flag("pushdown", otherwise=False):
            raise Invalid(
                "Option 'pushdown' is 'true', but Spark confuses the filters that it hands down: what one query leaves "
                "out is missing in the next one on the same frame. Say what to read by options 'types', 'keys' and "
                "'where': by these the server filters."
            )
        types = self.texts("types")
        if typed is not None and typed.only is not None:
            if types not in (None, EVERY_TYPE):
                raise Invalid(
                    "Options 'types' and 'schema' both say which types are read: say one of them, or types='*' for the "
                    "events of other types too, with their values in 'rescued'."
                )
            types = types or (typed.only,)
        return EventFilter(
            types=None if types == EVERY_TYPE else types, keys=self.texts("keys"), where=self.text("where")
        )

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Texts between commas, or a list in JSON."""
        value = self.text(name)
        if value is None:
            return None
        if not value.startswith("["):
            found: list[Any] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            try:
                found = json.loads(value)
            except ValueError:
                found = []
        if not found or not all(isinstance(one, str) and "\0" not in one for one in found):
            raise Invalid(f"Option {name!r} is {value!r}, expected texts between commas, or a list of texts in JSON.")
        return tuple(found)

    def flag(self, name: str, *, otherwise: bool) -> bool:
        value = self.text(name)
        if value is None:
            return otherwise
        if value.lower() not in ("true", "false"):
            raise Invalid(f"Option {name!r} is {value!r}, expected 'true' or 'false'.")
        return value.lower() == "true"

    def number(self, name: str, *, least: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < least:
            raise Invalid(f"Option {name!r} is {value!r}, expected a whole number from {least} on.")
        return int(value)

    def size(self, name: str) -> int | None:
        """Bytes: a number of them, or one with a unit like `128MB`."""
        value = self.text(name)
        if value is None or re.fullmatch("[0-9]+", value):
            return self.number(name, least=1)
        try:
            return parse_size(value)
        except Invalid:
            raise Invalid(f"Option {name!r} is {value!r}, expected bytes, like 134217728 or 128MB.") from None

    def name(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not NAME.fullmatch(value):
            raise Invalid(
                f"Option {name!r} is {value!r}, expected a letter, and up to 62 of a-z, 0-9, '_', '.' and '-'."
            )
        return value

    def refuse_beside(self, name: str, *others: str) -> None:
        for other in others:
            if self.text(other) is not None:
                raise Invalid(f"Option {other!r} is not for option {name!r}, which is read as a whole.")

    def _only_one(self, options: Iterable[str], what: str) -> str | None:
        given = [option for option in options if self.text(option) is not None]
        if len(given) > 1:
            raise Invalid(f"{what} is said more than once: by {' and '.join(map(repr, given))}. Say it once.")
        return given[0] if given else None
