"""What the filters of queues ask of an event by equality, kept as rows by which the transfer finds the filters to try.

    write(using, row)       # in the transaction that registers the consumer, under the topic's head

A filter has a few terms of which an event that it matches has at least one: a key, or the value at a path like
`$.tenant` of its value or of its metadata. All else of the filter is tried on such events only. A filter without any,
like `$.total > 100`, is tried on each event; types are asked for before, once for all events of a batch that have one.

Looking an event up takes as long as trying some dozens of filters. So the filters of a topic are indexed when there are
more than FEW of them that have terms, and then they stay so.

The terms of a predicate are taken from its canonical text, which PostgreSQL writes: `($."tenant" == "a" && $."x" > 1)`.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django_events import models, sql
from django_events.matching import FILTER, Filter, is_pattern

SQL = sql.beside(__name__)

FEW = 50  # filters of a topic, which are tried sooner than an event is looked up
MOST = 1_000  # terms of one filter: with more of them it is tried on each event
LONGEST_PREDICATE = 5_000  # characters: each alternative in it is a level of nesting
LONGEST = 600  # characters of a value, and of a path: an entry of the index must fit on its page

VALUE, METADATA = models.FilterTerm.VALUE, models.FilterTerm.METADATA
KEY = models.FilterTerm.KEY


class Term(NamedTuple):
    """An item that is looked for in an event."""

    source: str
    path: str
    value: Any


def write(using: str, row: models.Consumer) -> None:
    """Have the transfer find a queue by what its filter asks for now, in the caller's transaction."""
    row.filter_terms.using(using).all().delete()
    terms = terms_of(row, canonical(using, row.where), canonical(using, row.metadata))
    row.filter_digest, row.indexed = digest(row), False
    row.save(using=using, update_fields=["filter_digest", "indexed"])
    models.FilterTerm.objects.using(using).bulk_create(
        models.FilterTerm(
            consumer=row,
            topic_id=row.topic_id,
            source=term.source,
            path=term.path,
            value=term.value,
            filter_digest=row.filter_digest,
        )
        for term in terms
    )
    if terms:
        _index(using, row)


def _index(using: str, row: models.Consumer) -> None:
    """Have this one indexed if others of its topic are, and all of them if they are no few any more."""
    of_topic = models.Consumer.objects.using(using).filter(topic_id=row.topic_id)
    if of_topic.filter(indexed=True).exists():
        of_topic.filter(pk=row.pk).update(indexed=True)
        return
    terms = models.FilterTerm.objects.using(using).filter(topic_id=row.topic_id)
    ids = sorted(set(terms.values_list("consumer_id", flat=True)))
    if len(ids) > FEW:
        of_topic.filter(pk__in=ids).update(indexed=True)


def digest(of: Filter) -> str:
    """Filters with the same one match the same events."""
    written = [_listed(getattr(of, name)) for name in FILTER]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:32]


def canonical(using: str, predicate: str | None) -> str | None:
    """A predicate as PostgreSQL writes it: names quoted, and parentheses where they are needed to read it."""
    if predicate is None:
        return None
    [[text]] = sql.fetch(using, SQL.canonical, predicate=predicate)
    return str(text)


def terms_of(of: Filter, where: str | None, metadata: str | None) -> list[Term]:
    """The terms of a filter, given its predicates in canonical form; none if it has to be tried on each event.

    Those are taken that few events have: a key, else an equality in the value, else one in the metadata.
    """
    given = of.vars or {}
    chosen = (
        _of_keys(of.keys),
        None if where is None else _of_predicate(VALUE, where, given),
        None if metadata is None else _of_predicate(METADATA, metadata, given),
    )
    return next((terms for terms in chosen if terms is not None and _fit(terms)), [])


def variables(predicate: str | None) -> set[str]:
    """The names of the variables in a predicate in canonical form."""
    return {json.loads(token[1:]) for token in _tokens(predicate or "") if token.startswith('$"')}


def _fit(terms: Sequence[Term]) -> bool:
    return 0 < len(terms) <= MOST and all(
        len(term.path) <= LONGEST and len(json.dumps(term.value)) <= LONGEST for term in terms
    )


def _of_keys(keys: Sequence[str] | None) -> list[Term] | None:
    return None if keys is None or any(map(is_pattern, keys)) else [Term(KEY, "$", key) for key in keys]


def _of_predicate(source: str, predicate: str, given: Mapping[str, Any]) -> list[Term] | None:
    """The terms of which one is there if the predicate is true; None if that can't be said.

    In strict mode an item is not the same as a list of it, so there are none.
    """
    if predicate.startswith("strict") or len(predicate) > LONGEST_PREDICATE:
        return None
    return _of_condition(source, list(_tokens(predicate)), given)


def _of_condition(source: str, tokens: list[str], given: Mapping[str, Any]) -> list[Term] | None:
    tokens = _unwrapped(tokens)
    if either := _split(tokens, "||"):
        alternatives = [_of_condition(source, one, given) for one in either]
        return None if None in alternatives else [term for terms in alternatives for term in terms or ()]
    if both := _split(tokens, "&&"):
        usable = [terms for one in both if (terms := _of_condition(source, one, given)) is not None]
        return min(usable, key=len, default=None)
    if len(sides := _split(tokens, "==")) != 2:
        return None
    for path, value in (sides, reversed(sides)):
        if (items := _items(value, given)) is not None and (where := _path(path)) is not None:
            return [Term(source, where, item) for item in items]
    return None


def _tokens(text: str) -> Iterator[str]:
    for found in _TOKEN.finditer(text):
        if not found[0].isspace():
            yield found[0]


def _unwrapped(tokens: list[str]) -> list[str]:
    """Without the parentheses around all of it."""
    while tokens and tokens[0] == "(" and _end(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def _end(tokens: list[str], start: int) -> int:
    """Where the parenthesis ends that begins there."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index] in _OPENING) - (tokens[index] in _CLOSING)
        if not depth:
            return index
    return -1


def _split(tokens: list[str], operator: str) -> list[list[str]]:
    """What is between the operators outside of all parentheses; nothing if there are none."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == operator and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if len(parts) > 1 else []


def _path(tokens: list[str]) -> str | None:
    """The path to the items that are compared, if these are members of members: a list is compared item by item."""
    names = tokens[2::2]
    if len(tokens) < 3 or tokens[0] != "$" or len(tokens) != 1 + 2 * len(names):
        return None
    if any(dot != "." for dot in tokens[1::2]) or not all(name.startswith('"') for name in names):
        return None
    return "".join(tokens) + "[*]"


def _items(tokens: list[str], given: Mapping[str, Any]) -> list[Any] | None:
    """The items that an equality compares with, if all of them can be looked for."""
    if len(tokens) != 1:
        return None
    [token] = tokens
    if token.startswith('$"'):
        value = given.get(json.loads(token[1:]))
        items = value if isinstance(value, list) else [value]
    elif token[0] in '"-0123456789' or token in ("true", "false"):
        items = [json.loads(token)]
        if isinstance(items[0], float) and Decimal(repr(items[0])) != Decimal(token):
            return None  # Python has no such number, PostgreSQL has
    else:
        return None
    scalars = [item for item in items if not isinstance(item, dict | list)]  # others are equal to nothing
    return None if None in scalars else scalars or None


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


_TOKEN = re.compile(
    r"""
    \$?"(?:[^"\\]|\\.)*"            # a text, the name of a member, or a variable
    | -?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?
    | && | \|\| | == | != | <> | <= | >=
    | [A-Za-z_]+
    | \s+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
