"""The SQL files: each says what it is for, takes what its header names, and is used."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from django_events import sql
from django_events.publishing.encoding import Row

PACKAGE = Path(sql.__file__).parents[1]
FILES = sorted(path.stem for path in (PACKAGE / "sql").glob("*.sql"))

FETCHING = {"fetch", "fetch_whole", "bounded"}  # all take a statement, and its parameters by name
PARAMETER = re.compile(r"%\((\w+)\)s")
IDENTIFIER = re.compile(r"\{(\w+)\}")
WRITES = {"INSERT", "UPDATE", "DELETE"}
KINDS = {"SELECT", "WITH", "CREATE", "ALTER", "DROP", "ANALYZE", "COPY", "LOCK", "SET", *WRITES}
JSONPATH = re.compile(r"'strict [^']*'")
READS = re.compile(r"\b(?:FROM|JOIN|USING)\s+(django_events_\w+|pg_\w+|\{log\})(?!\w*\()")


def header(name: str) -> str:
    lines = (PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    taken = []
    for line in lines:
        if not line.startswith("--"):
            break
        taken.append(line.removeprefix("--").strip())
    return "\n".join(taken)


def section(name: str, *titles: str) -> str:
    """What a header says after `Parameters:` and the like, up to the next title."""
    known = "Parameters|Identifiers|Literals|Parts|Relies on"
    found = re.findall(rf"(?s)\b(?:{'|'.join(titles)}): (.*?)(?=\b(?:{known}):|\Z)", header(name))
    return " ".join(found)


@dataclass(frozen=True)
class Use:
    """A place in the code that takes a statement, and what it gives to it."""

    name: str
    identifiers: frozenset[str] | None = None
    parameters: frozenset[str] | None = None
    parts: frozenset[str] = frozenset()


@cache
def uses() -> list[Use]:
    found = []
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        found += uses_of_tables(module)
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                found += uses_in(node)
            elif isinstance(node, ast.FunctionDef):
                found += uses_of_variables(node)
            elif isinstance(node, ast.Tuple):
                found += uses_in_question(node)
    return found


def uses_in(call: ast.Call) -> list[Use]:
    found = [Use(name) for name in statement_names(call)]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "on":
        parts = frozenset(name for k in call.keywords for name in statement_names(bare(k.value)))
        found += [Use(name, identifiers=keywords(call), parts=parts) for name in statement_names(call.func.value)]
    if called(call) in FETCHING and len(call.args) == 2:
        found += [Use(name, parameters=keywords(call)) for name in statement_names(bare(call.args[1]))]
    return found


def uses_in_question(pair: ast.Tuple) -> list[Use]:
    """A statement that is asked together with others: beside it are its parameters, as a dict."""
    if len(pair.elts) != 2 or not isinstance(pair.elts[1], ast.Dict):
        return []
    given = frozenset(key.value for key in pair.elts[1].keys if isinstance(key, ast.Constant))
    return [Use(name, parameters=given) for name in statement_names(bare(pair.elts[0]))]


def uses_of_tables(module: ast.Module) -> list[Use]:
    """Statements that a module keeps in a dict, and completes where it takes one out."""
    kept = [
        name
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for value in node.value.values
        for name in statement_names(value)
    ]
    return [
        Use(name, identifiers=keywords(node))
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "on"
        if isinstance(node.func.value, ast.Subscript)
        for name in kept
    ]


def uses_of_variables(function: ast.FunctionDef) -> list[Use]:
    """A statement that has a name of its own in a function, and is completed or fetched by it."""
    nodes = list(ast.walk(function))
    named = {
        target.id: statement_names(bare(value))
        for node in nodes
        if isinstance(node, ast.Assign)
        for target, value in assignments(node)
        if isinstance(target, ast.Name)
    }
    found = []
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if called(node) in FETCHING and len(node.args) == 2 and isinstance(node.args[1], ast.Name):
            found += [Use(name, parameters=keywords(node)) for name in named.get(node.args[1].id, [])]
        if called(node) == "on" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            found += [Use(name, identifiers=keywords(node)) for name in named.get(node.func.value.id, [])]
    return found


def assignments(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    [target, *others] = node.targets
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return [*zip(target.elts, node.value.elts, strict=True)]
    return [(one, node.value) for one in (target, *others)]


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def bare(node: ast.expr) -> ast.expr:
    """Without the `.on(…)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "on":
        return node.func.value
    return node


def statement_names(node: ast.expr) -> list[str]:
    """What `statement("one")` or `statement("one" if … else "other")` may ask for."""
    if not (isinstance(node, ast.Call) and called(node) == "statement"):
        return []
    name = node.args[0]
    chosen = [name.body, name.orelse] if isinstance(name, ast.IfExp) else [name]
    return [choice.value for choice in chosen if isinstance(choice, ast.Constant)]


def keywords(call: ast.Call) -> frozenset[str]:
    """The names given; the only `**` is that of an encoded event."""
    return frozenset(
        name
        for k in call.keywords
        if k.arg not in ("at_most", "most_bytes")  # are not the statement's
        for name in ([k.arg] if k.arg else Row._fields if "'row'" in ast.dump(k.value) else [])
    )


def parts_of(name: str) -> set[str]:
    """The files that are put into a statement."""
    return {part for use in uses() if use.name == name for part in use.parts}


def test_there_are_files_and_uses():
    assert len(FILES) > 20
    assert len(uses()) > 20


def test_every_statement_that_code_asks_for_is_there():
    assert {use.name for use in uses()} - set(FILES) == set()


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_used(name):
    assert name in {use.name for use in uses()}


@pytest.mark.parametrize("name", FILES)
def test_every_file_begins_with_its_purpose(name):
    purpose = header(name).split("\n")[0]

    assert re.fullmatch(r"[A-Z].{15,}", purpose), purpose
    assert sql.statement(name).text, "a header and nothing else"


@pytest.mark.parametrize("name", FILES)
def test_the_statement_is_the_file_without_its_comments(name):
    text = sql.statement(name).text

    assert "--" not in text
    if not header(name).startswith("Part of"):
        first = {
            "SELECT",
            "WITH",
            "CREATE",
            "ALTER",
            "DROP",
            "COPY",
            "LOCK",
            "SET",
            "ANALYZE",
            "GRANT",
            "REVOKE",
            "DO",
            *WRITES,
        }
        assert text.split()[0] in first
    assert not text.endswith(";")


@pytest.mark.parametrize("name", FILES)
def test_every_parameter_is_named_in_the_header(name):
    texts = [sql.statement(one).text for one in {name, *parts_of(name)}]
    taken = {parameter for text in texts for parameter in PARAMETER.findall(text)}
    named = set(re.findall(r"\w+", section(name, "Parameters")))

    assert taken <= named
    assert bool(taken) == bool(named)


@pytest.mark.parametrize("name", FILES)
def test_every_identifier_and_literal_is_named_in_the_header(name):
    taken = set(IDENTIFIER.findall(sql.statement(name).text))
    named = set(re.findall(r"\w+", section(name, "Identifiers", "Literals", "Parts")))

    assert taken <= named
    assert bool(taken) == bool(named)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_reads_a_table_says_what_it_relies_on(name):
    text = sql.statement(name).text
    if READS.search(text):
        assert section(name, "Relies on")


@pytest.mark.parametrize("name", FILES)
def test_code_gives_each_statement_exactly_what_it_takes(name):
    text = sql.statement(name).text
    of_parts = [p for part in parts_of(name) for p in PARAMETER.findall(sql.statement(part).text)]
    taken = {"parameters": PARAMETER.findall(text) + of_parts, "identifiers": IDENTIFIER.findall(text)}
    if any(name in use.parts for use in uses()):
        del taken["parameters"]  # they are given to what it is a part of
    for kind, names in taken.items():
        given = [getattr(use, kind) for use in uses() if use.name == name and getattr(use, kind) is not None]
        assert all(set(some) == set(names) for some in given), given
        assert given or not names, f"nobody gives it its {kind}"


@pytest.mark.parametrize("name", FILES)
def test_there_are_no_other_placeholders(name):
    text = JSONPATH.sub("", IDENTIFIER.sub("", PARAMETER.sub("", sql.statement(name).text)))

    assert not re.search(r"[{}?]|\$\d", text)
    assert re.findall(r"%+", text.replace("%%", "")) == []


def test_a_name_that_is_put_into_a_statement_is_quoted():
    statement = sql.Statement("x", "SELECT 1 FROM {log} WHERE name = {name} AND id = {id}")
    made = statement.on(log='a"; DROP TABLE b; --', name=sql.literal("O'Brien"), id=7)

    assert made.text == """SELECT 1 FROM "a""; DROP TABLE b; --" WHERE name = 'O''Brien' AND id = 7"""


def test_a_statement_is_read_once():
    assert sql.statement("publish") is sql.statement("publish")


def test_a_statement_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        sql.statement("no_such_statement")


def test_a_union_keeps_the_order_of_its_statements():
    one, two = sql.Statement("one", "SELECT 1"), sql.Statement("two", "SELECT 2")

    assert sql.union_all([one, two]).text == "(SELECT 1)\nUNION ALL\n(SELECT 2)"
