"""Changes of tables as events: `capture()` makes triggers that publish what a statement did, whichever program sent it.

    class Order(models.Model):
        class Meta:
            triggers = capture("orders", created="order.placed", updated="order.changed", deleted="order.cancelled")

One trigger for each operation, run once per statement: 100,000 rows of one UPDATE are one INSERT into the buffer.
`makemigrations` sees when they change.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pgtrigger
from django.db import connections
from django.db.models import Model

from django_events import declarations, sql
from django_events.drafts import UNSET, Unset
from django_events.exceptions import Invalid
from django_events.models.buffer import writable
from django_events.publishing.encoding import MAX_TYPE_LENGTH
from django_events.publishing.fields import (
    Concrete,
    chosen,
    concrete_fields,
    differ_in_sql,
    in_sql,
    key_fields,
    may_expand,
    named,
    pk_fields,
    problem_of_names,
    problems_of_keys,
)
from django_events.publishing.session_settings import names_of
from django_events.statements import quoted, quoted_name

SQL = sql.beside(__name__)

MASKED = "***"
LONGEST_NAME = 39  # pgtrigger allows for 47 characters, and _updated is behind them

Operation = Literal["created", "updated", "deleted"]
_OPERATIONS: dict[Operation, pgtrigger.Operation] = {
    "created": pgtrigger.Insert,
    "updated": pgtrigger.Update,
    "deleted": pgtrigger.Delete,
}
_REFERENCING: dict[str, dict[str, str]] = {
    "created": {"new": "new_values"},
    "updated": {"old": "old_values", "new": "new_values"},
    "deleted": {"old": "old_values"},
}
_DECLARED = [("django_events_topic", "integer"), ("django_events_metadata", "jsonb")]
# What stands in quotes is not touched where OLD and NEW are replaced.
_QUOTED = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")


def capture(
    topic: declarations.DeclaredTopic | str,
    *,
    key: str | None = "pk",
    created: str | Unset | None = UNSET,
    updated: str | Unset | None = UNSET,
    deleted: str | Unset | None = UNSET,
    fields: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    mask: Sequence[str] = (),
    watch: Sequence[str] = (),
    condition: pgtrigger.Condition | None = None,
    name: str | None = None,
) -> list[pgtrigger.Trigger]:
    """Make triggers that publish an event for each row that is inserted, updated or deleted, in the same transaction.

    Types, key, fields and the value are those of `@outbox`. An update is an event if one of the fields that events
    contain changed, or with `watch` one of these; its value says from what to what. `mask` hides values, and
    says only that they changed. A condition is one of pgtrigger's. Two captures of a model for one topic need names.
    """
    name = name or _name_of(str(topic))
    declared = CaptureOptions(
        topic=str(topic),
        key=key,
        types={"created": created, "updated": updated, "deleted": deleted},
        fields=declarations.texts(fields),
        exclude=declarations.texts(exclude),
        mask=declarations.texts(mask),
        watch=declarations.texts(watch),
        condition=condition,
    )
    return [
        Capture(declared, operation, name=f"{name}_{operation}")
        for operation, given in declared.types.items()
        if given is not None
    ]


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """What `capture()` was given: the same for each of its triggers."""

    topic: str
    key: str | None
    types: dict[Operation, str | Unset | None]
    fields: tuple[str, ...] | None
    exclude: tuple[str, ...]
    mask: tuple[str, ...]
    watch: tuple[str, ...]
    condition: pgtrigger.Condition | None

    def problems(self, model: type[Model]) -> Iterator[str]:
        """Yield a sentence for each reason why it can't capture a model."""
        what = f"capture({self.topic!r}) of {model._meta.label}"
        own = _own_fields(model)
        there = f"There are {', '.join(sorted(own))}."
        if model._meta.parents:
            there += " What a parent's table has is captured there: give this model triggers in its own Meta."
        for option in ("fields", "exclude", "mask", "watch"):
            for name in getattr(self, option) or ():
                field = named(model, name)
                if field is None or field.attname not in own:
                    yield f"{what} has {name!r} in {option}, which is no column of its own table. {there}"
        keys = [] if self.key is None else key_fields(model, self.key)
        if self.key is not None and (not keys or any(field.attname not in own for field in keys)):
            yield f"{what} has key={self.key!r}, which is no column of its own table. {there}"
        for operation, given in self.types.items():
            if isinstance(given, str) and (len(given) > MAX_TYPE_LENGTH or "$" in given or "\0" in given):
                yield (
                    f"{what} has {operation}={given!r:.60}, expected at most {MAX_TYPE_LENGTH} characters, "
                    "without $ and U+0000."
                )
        problem = problem_of_names(what, self.payload(model))
        if problem is not None and self.types["updated"] is not None:
            yield problem
        yield from problems_of_keys(what, keys, [*chosen(model, self.exclude), *chosen(model, self.mask)])
        if self.condition is not None:
            try:
                condition = self.resolved(model)
            except Exception as error:
                yield f"{what} has a condition that can't be used: {error}"
            else:
                yield from self._problems_of_condition(what, condition)

    def _problems_of_condition(self, what: str, condition: str) -> Iterator[str]:
        if "$$" in condition:
            yield f"{what} has a condition with $$, which ends the function of a trigger."
        unquoted = _QUOTED.sub("", condition)
        missing: list[tuple[str, Operation]] = [("OLD", "created"), ("NEW", "deleted")]
        for row, operation in missing:
            if self.types[operation] is not None and re.search(rf"\b{row}\.", unquoted, re.I):
                yield (
                    f"{what} has a condition about {row}, and a row that is {operation} has no such values. "
                    f"Capture that apart, or say {operation}=None."
                )

    def resolved(self, model: type[Model]) -> str:
        return "true" if self.condition is None else str(self.condition.resolve(model))  # type: ignore[no-untyped-call]  # not ours

    def payload(self, model: type[Model]) -> list[Concrete]:
        """The fields that its events contain."""
        own = _own_fields(model)
        return [one for one in chosen(model, self.fields, self.exclude) if one.attname in own]

    def type_of(self, model: type[Model], operation: Operation) -> str | None:
        given = self.types[operation]
        concrete = model._meta.concrete_model or model  # a proxy is its model
        return f"{concrete._meta.model_name}.{operation}" if isinstance(given, Unset) else given


def _name_of(topic: str) -> str:
    name = "capture_" + re.sub(r"[^a-z0-9_-]", "_", topic)
    if len(name) <= LONGEST_NAME and name == f"capture_{topic}":
        return name
    return f"{name[: LONGEST_NAME - 7]}_{hashlib.sha1(topic.encode(), usedforsecurity=False).hexdigest()[:6]}"


class RowParts(NamedTuple):
    """Parts of a statement that publishes rows `r`: their key, what is around the value, its columns, which rows."""

    key: str
    checked: str
    end: str
    shown: str
    condition: str


class Capture(pgtrigger.Trigger):
    """The trigger of one operation."""

    def __init__(self, declared: CaptureOptions, operation: Operation, *, name: str) -> None:
        super().__init__(
            name=name,
            level=pgtrigger.Statement,
            when=pgtrigger.After,
            operation=_OPERATIONS[operation],
            referencing=pgtrigger.Referencing(**_REFERENCING[operation]),  # type: ignore[no-untyped-call]  # not ours
            declare=_DECLARED,
        )
        self.declared = declared
        self.of: Operation = operation

    def get_func(self, model: type[Model]) -> str:  # type: ignore[override]  # it says instance, and gives the class
        """The body of the trigger's function."""
        for problem in self.declared.problems(model):
            raise Invalid(problem)
        suppressible = ", ".join(quoted(name) for name in names_of(self.declared.topic, model))
        rows = _REFERENCING[self.of].get("new", "old_values")
        insert = self._changes(model) if self.of == "updated" else self._rows(model)
        function = SQL.capture_function.written(
            rows=rows, suppressible=suppressible, topic=quoted(self.declared.topic), insert=insert, empty=quoted("{}")
        )
        return f"{function};"

    def row_parts(self, model: type[Model]) -> RowParts:
        """What its events say of a row that is inserted, or is there."""
        columns, payload, masked = _columns_of(model), self.declared.payload(model), self._masked(model)
        checked, end = columns.checked(payload, masked)
        return RowParts(
            key=columns.key("r", self.declared.key),
            checked=checked,
            end=end,
            shown=columns.shown("r", payload, masked),
            condition=self._condition(model, old="r", new="r"),
        )

    def compares(self, model: type[Model]) -> bool:
        """Whether its condition is about what a row was and what it became: no row by itself fits that."""
        unquoted = _QUOTED.sub("", self.declared.resolved(model))
        return all(re.search(rf"\b{row}\.", unquoted, re.I) for row in ("OLD", "NEW"))

    def _rows(self, model: type[Model]) -> str:
        parts = self.row_parts(model)
        return SQL.capture_rows.written(
            rows=quoted_name(_REFERENCING[self.of].get("new", "old_values")),
            type=self._type(model, self.of),
            key=parts.key,
            checked=parts.checked,
            end=parts.end,
            shown=parts.shown,
            condition=parts.condition,
        )

    def _changes(self, model: type[Model]) -> str:
        columns, payload, masked = _columns_of(model), self.declared.payload(model), self._masked(model)
        watched = chosen(model, self.declared.watch) if self.declared.watch else payload
        unshown = [*payload, *chosen(model, self.declared.exclude)]
        told = [*payload, *(one for one in watched if one not in unshown)]
        checked, end = columns.checked(told, masked)
        return SQL.capture_changes.written(
            pk=quoted_name(str(columns.pk[0].column)),
            same=columns.same(),
            created=self._type(model, "created"),
            updated=self._type(model, "updated"),
            deleted=self._type(model, "deleted"),
            old_key=columns.key("o", self.declared.key),
            new_key=columns.key("n", self.declared.key),
            checked=checked,
            end=end,
            old_shown=columns.shown("o", payload, masked),
            new_shown=columns.shown("n", payload, masked),
            changed=columns.changed(told, masked),
            differ=columns.differ(watched),
            condition=self._condition(model, old="o", new="n"),
        )

    def _type(self, model: type[Model], operation: Operation) -> str:
        name = self.declared.type_of(model, operation)
        return "NULL::varchar" if name is None else f"{quoted(name)}::varchar"

    def _masked(self, model: type[Model]) -> list[Concrete]:
        return chosen(model, self.declared.mask)

    def _condition(self, model: type[Model], *, old: str, new: str) -> str:
        parts = _QUOTED.split(self.declared.resolved(model))
        for index in range(0, len(parts), 2):
            parts[index] = re.sub(r"\bOLD\.", f"{old}.", parts[index], flags=re.I)
            parts[index] = re.sub(r"\bNEW\.", f"{new}.", parts[index], flags=re.I)
        return f"({''.join(parts)})"


def _own_fields(model: type[Model]) -> dict[str, Concrete]:
    """The fields that have a column in a model's own table, by attribute name."""
    table: Any = model._meta.concrete_model
    own = {field.attname for field in table._meta.local_concrete_fields}
    return {name: field for name, field in concrete_fields(model).items() if name in own}


class _Columns:
    """The columns of a model's own table, as parts of statements. Those of its parents have triggers of their own."""

    def __init__(self, using: str, model: type[Model]) -> None:
        self.using = using
        self.model = model
        self.pk = pk_fields(model)

    def key(self, row: str, name: str | None) -> str:
        fields = [] if name is None else key_fields(self.model, name)
        parts = [f"({self._written(row, field)})::text" for field in fields] or ["NULL::text"]
        return parts[0] if len(parts) == 1 else f"concat_ws(',', {', '.join(parts)})"

    def same(self) -> str:
        """Whether an old and a new row are the same one."""
        return " AND ".join(f"{self._column('o', field)} = {self._column('n', field)}" for field in self.pk)

    def shown(self, row: str, fields: list[Concrete], masked: list[Concrete]) -> str:
        return ", ".join(f"{self._shown(row, field, masked)} AS {quoted_name(field.attname)}" for field in fields)

    def changed(self, fields: list[Concrete], masked: list[Concrete]) -> str:
        """An object of those that changed, from what to what; the empty one too, where there is none."""
        parts = [
            f"CASE WHEN {self._differs(field)} THEN jsonb_build_object({quoted(field.attname)}, jsonb_build_object("
            f"'old', {self._shown('o', field, masked)}, 'new', {self._shown('n', field, masked)})) ELSE '{{}}' END"
            for field in fields
        ]
        return " || ".join(parts) or "'{}'::jsonb"

    def differ(self, fields: list[Concrete]) -> str:
        return f"({' OR '.join(map(self._differs, fields)) or 'false'})"

    def _shown(self, row: str, field: Concrete, masked: list[Concrete]) -> str:
        return self._masked(row, field) if field in masked else self._written(row, field)

    def _differs(self, field: Concrete) -> str:
        return differ_in_sql(self.using, field, self._column("o", field), self._column("n", field))

    def _written(self, row: str, field: Concrete) -> str:
        return in_sql(self.using, field, self._column(row, field))

    def _masked(self, row: str, field: Concrete) -> str:
        return f"CASE WHEN {self._column(row, field)} IS NOT NULL THEN {quoted(MASKED)} END"

    def _column(self, row: str, field: Concrete) -> str:
        return f"{row}.{quoted_name(str(field.column))}"

    def checked(self, shown: list[Concrete], masked: list[Concrete]) -> tuple[str, str]:
        """What comes before and behind a value that may be one which no reader makes into text: what refuses it."""
        may = any(may_expand(self.using, field) for field in shown if field not in masked)
        return ("django_events_checked(", ")") if may else ("", "")


def _columns_of(model: type[Model]) -> _Columns:
    """pgtrigger gives no alias: where events are written, or else on a PostgreSQL that the site has beside it."""
    written_to = writable()
    aliases = [written_to, *(alias for alias in connections if alias != written_to)]
    return _Columns(next((a for a in aliases if connections[a].vendor == "postgresql"), written_to), model)
