"""The SQL files: each statement says what it is for, takes what its header names, and is used beside its file."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from django_events import sql, statements
from django_events.event_columns import COPIED
from django_events.publishing.encoding import BufferRow

PACKAGE = Path(sql.__file__).parents[1]
SHARED = "sql/shared"
FUNCTIONS = "consuming/programs/worker_functions"  # no statements: bodies of functions, which hold those of others

ASKING = {"ask", "_fetch"}
FETCHING = {"fetch", "fetch_whole", "bounded", "begin_with"}  # all take a statement, and its parameters by name
PARAMETER = re.compile(r"%\((\w+)\)s")
IDENTIFIER = re.compile(r"\{(\w+)\}")
CHANGES = {
    "LISTEN",
    "CREATE",
    "ALTER",
    "DROP",
    "GRANT",
    "REVOKE",
    "ANALYZE",
    "REINDEX",
    "LOCK",
    "SET",
    "DO",
    "COPY",
    "BEGIN",
    "DEALLOCATE",
}
KINDS = {"COMMENT", "SELECT", "WITH", "INSERT", "UPDATE", "DELETE", *CHANGES}
JSONPATH = re.compile(r"'strict [^']*'")
READS = re.compile(r"\b(?:FROM|JOIN|USING)\s+(django_events_\w+|pg_\w+|\{log\})(?!\w*\()")
TITLES = "Parameters|Identifiers|Literals|Parts|Relies on"


@dataclass(frozen=True)
class Block:
    """A statement as it stands in its file."""

    header: str
    text: str

    def section(self, *titles: str) -> str:
        """What the header says after `Parameters:` and the like, up to the next title."""
        return " ".join(re.findall(rf"(?s)\b(?:{'|'.join(titles)}): (.*?)(?=\b(?:{TITLES}):|\Z)", self.header))

    def named(self, *titles: str) -> set[str]:
        return set(re.findall(r"\w+", self.section(*titles)))


@cache
def blocks() -> dict[str, Block]:
    """By file and name, as in "log/transfer.pending"."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.sql")):
        file = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if file == FUNCTIONS:
            continue
        statements = sql.Statements(f"{file}.sql")
        before, *others = path.read_text(encoding="utf-8").split("-- name: ")
        assert not before, f"{path}: {before}"
        for other in others:
            name, *lines = other.splitlines()
            header = []
            for line in lines:
                if not line.startswith("--"):
                    break
                header.append(line.removeprefix("--").strip())
            assert f"{file}.{name}" not in found, f"{path}: two statements are called {name}"
            found[f"{file}.{name}"] = Block("\n".join(header), getattr(statements, name).text)
    return found


@dataclass(frozen=True)
class Use:
    """A place in the code that takes a statement, and what it gives to it."""

    name: str
    identifiers: frozenset[str] | None = None
    parameters: frozenset[str] | None = None
    parts: frozenset[str] = frozenset()


@cache
def uses() -> list[Use]:
    return [
        use
        for path in PACKAGE.rglob("*.py")
        for use in Module(path.relative_to(PACKAGE).with_suffix("").as_posix()).uses(
            ast.parse(path.read_text(encoding="utf-8"))
        )
        if not use.name.startswith(FUNCTIONS)
    ]


class Module:
    """What one module asks for."""

    def __init__(self, path: str) -> None:
        self.path = path

    def uses(self, module: ast.Module) -> Iterator[Use]:
        yield from self.of_tables(module)
        for node in ast.walk(module):
            yield from (Use(name) for name in self.names(node))
            if isinstance(node, ast.Call):
                yield from self.of_call(node)
            elif isinstance(node, ast.FunctionDef):
                yield from self.of_variables(node)
            elif isinstance(node, ast.ClassDef):
                yield from self.of_attributes(node)
            elif isinstance(node, ast.Tuple):
                yield from self.of_question(node)

    def names(self, node: ast.AST) -> list[str]:
        """What `SQL.one`, `sql.shared.one`, or `(SQL.one if … else SQL.other)` asks for."""
        if isinstance(node, ast.IfExp):
            return self.names(node.body) + self.names(node.orelse)
        if not isinstance(node, ast.Attribute):
            return []
        match ast.unparse(node.value):
            case "SQL":
                return [f"{self.path}.{node.attr}"]
            case "shared" | "sql.shared":
                return [f"{SHARED}.{node.attr}"]
        return []

    def of_call(self, call: ast.Call) -> Iterator[Use]:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("on", "written"):
            parts = frozenset(name for k in call.keywords for name in self.names(bare(k.value)))
            for name in self.names(call.func.value):
                yield Use(name, identifiers=keywords(call), parts=parts)
        if called(call) in ASKING and call.args:
            for name in self.names(bare(call.args[0])):
                yield Use(name, parameters=keywords(call))
        if called(call) == "_execute" and len(call.args) == 2:
            for name in self.names(bare(call.args[1])):
                yield Use(name, parameters=keywords(call))
        if called(call) in FETCHING and len(call.args) == 2:
            for name in self.names(bare(call.args[1])):
                yield Use(name, parameters=keywords(call))

    def of_question(self, pair: ast.Tuple) -> Iterator[Use]:
        """A statement that is asked together with others: beside it are its parameters, as a dict."""
        if len(pair.elts) == 2 and isinstance(pair.elts[1], ast.Dict):
            given = frozenset(key.value for key in pair.elts[1].keys if isinstance(key, ast.Constant))
            for name in self.names(bare(pair.elts[0])):
                yield Use(name, parameters=given)

    def of_tables(self, module: ast.Module) -> Iterator[Use]:
        """Statements that a module keeps in a dict, and completes where it takes one out."""
        kept = {
            ast.unparse(node.targets[0]): [name for value in node.value.values for name in self.names(value)]
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and called(node) == "on" and isinstance(of := bare_of(node), ast.Subscript):
                names = kept.get(ast.unparse(of.value), [name for names in kept.values() for name in names])
                yield from (Use(name, identifiers=keywords(node)) for name in names)

    def of_attributes(self, of: ast.ClassDef) -> Iterator[Use]:
        """A statement that an object keeps, completed, and asks again and again."""
        nodes = list(ast.walk(of))
        kept = {
            ast.unparse(node.targets[0]): self.names(bare(node.value))
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        }
        for node in nodes:
            if isinstance(node, ast.Call) and called(node) in ASKING and node.args:
                yield from (Use(n, parameters=keywords(node)) for n in kept.get(ast.unparse(node.args[0]), []))

    def of_variables(self, function: ast.FunctionDef) -> Iterator[Use]:
        """A statement that has a name of its own in a function, and is completed or fetched by it."""
        nodes = list(ast.walk(function))
        named = {
            target.id: self.names(bare(value))
            for node in nodes
            if isinstance(node, ast.Assign)
            for target, value in assignments(node)
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            if called(node) in ASKING and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
                yield from (Use(name, parameters=keywords(node)) for name in named.get(node.args[0].id, []))
            if called(node) in FETCHING and len(node.args) == 2 and isinstance(node.args[1], ast.Name):
                yield from (Use(name, parameters=keywords(node)) for name in named.get(node.args[1].id, []))
            if called(node) == "on" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                yield from (Use(name, identifiers=keywords(node)) for name in named.get(node.func.value.id, []))


def assignments(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    [target, *others] = node.targets
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return [*zip(target.elts, node.value.elts, strict=True)]
    return [(one, node.value) for one in (target, *others)]


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def bare_of(call: ast.Call) -> ast.expr | None:
    """What a method is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def bare(node: ast.expr) -> ast.expr:
    """Without the `.on(…)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("on", "written"):
        return node.func.value
    return node


def keywords(call: ast.Call) -> frozenset[str]:
    """The names given; the only `**` are those of an encoded event, and of a stored one."""
    return frozenset(
        name
        for k in call.keywords
        if k.arg not in ("at_most", "most_bytes")  # are not the statement's
        for name in ([k.arg] if k.arg else unpacked(k.value))
    )


def unpacked(value: ast.expr) -> tuple[str, ...]:
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in ast.walk(value)}
    return BufferRow._fields if "row" in names else COPIED if "stored" in names else ()


def parts_of(name: str) -> set[str]:
    """The statements that are put into a statement."""
    return {part for use in uses() if use.name == name for part in use.parts}


@pytest.mark.slow
def test_there_are_statements_and_uses():
    assert len(blocks()) > 200
    assert len(uses()) > 200


@pytest.mark.slow
def test_what_the_code_asks_for_is_there_and_each_statement_is_asked_for():
    asked = {use.name for use in uses()}

    assert asked - set(blocks()) == set()
    assert set(blocks()) - asked == set()


@pytest.mark.slow
def test_what_is_shared_is_asked_for_by_several_modules():
    askers: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for use in Module("").uses(module):
            askers.setdefault(use.name, set()).add(path.relative_to(PACKAGE).as_posix())
    loaders = {"sql/__init__.py", "statements.py"}
    shared = {name for name in blocks() if name.startswith(SHARED)}

    assert {name for name in shared if len(askers[name]) == 1 and not askers[name] & loaders} == set()


def test_every_header_begins_with_the_purpose():
    wrong = [name for name, block in blocks().items() if not re.match(r"[A-Z].{15,}", block.header)]

    assert wrong == []
    assert [name for name, block in blocks().items() if not block.text] == []


def test_a_statement_is_what_its_file_says_without_comments():
    for name, block in blocks().items():
        assert "--" not in block.text, name
        assert not block.text.endswith(";"), name
        assert block.header.startswith("Part of") or block.text.split()[0] in KINDS, name


def test_headers_name_all_that_a_statement_takes():
    for name, block in blocks().items():
        texts = [blocks()[one].text for one in {name, *parts_of(name)}]
        parameters = {parameter for text in texts for parameter in PARAMETER.findall(text)}
        identifiers = set(IDENTIFIER.findall(block.text))
        for taken, named in (
            (parameters, block.named("Parameters")),
            (identifiers, block.named("Identifiers", "Literals", "Parts")),
        ):
            assert taken <= named, f"{name} takes {taken - named}, and its header doesn't name it"
            assert bool(taken) == bool(named), f"{name} takes nothing of what its header names"


def test_a_statement_that_reads_a_table_says_what_it_relies_on():
    silent = [name for name, one in blocks().items() if READS.search(one.text) and not one.section("Relies on")]

    assert silent == []


@pytest.mark.slow
def test_code_gives_each_statement_exactly_what_it_takes():
    for name, block in blocks().items():
        of_parts = [p for part in parts_of(name) for p in PARAMETER.findall(blocks()[part].text)]
        taken = {"parameters": PARAMETER.findall(block.text) + of_parts, "identifiers": IDENTIFIER.findall(block.text)}
        if any(name in use.parts for use in uses()):
            del taken["parameters"]  # they are given to what it is a part of
        for kind, names in taken.items():
            given = [getattr(use, kind) for use in uses() if use.name == name and getattr(use, kind) is not None]
            assert all(set(some) == set(names) for some in given), (name, given, names)
            assert given or not names, f"no place in the code gives {name} its {kind}"


def test_there_are_no_other_placeholders():
    for name, block in blocks().items():
        text = JSONPATH.sub("", IDENTIFIER.sub("", PARAMETER.sub("", block.text)))
        assert not re.search(r"[{}?]|\$\d", text), name
        assert re.findall(r"%+", text.replace("%%", "")) == [], name


def test_a_name_that_is_put_into_a_statement_is_quoted():
    statement = statements_of("x", "SELECT 1 FROM {log} WHERE name = {name} AND id = {id}")
    made = statement.on(log='a"; DROP TABLE b; --', name=sql.literal("O'Brien"), id=7)

    assert made.text == """SELECT 1 FROM "a""; DROP TABLE b; --" WHERE name = 'O''Brien' AND id = 7"""


def statements_of(name, text):
    return statements._made(name, text)


def test_what_is_given_to_a_statement_is_composed_by_what_it_is():
    statement = statements_of("x", "{a} {b} {c} {d} {e}")
    made = statement.on(
        a=("e", "id"), b=["a", "b"], c=[statements_of("part", "1"), ("e", "key")], d=-7, e=sql.literal("%")
    )

    assert made.text == """"e"."id" "a", "b" 1, "e"."key"  -7 '%%'"""


def test_text_for_a_person_is_no_statement():
    statement = statements_of("x", "SELECT format('%%I', {name})")

    assert statement.written(name="'100%'") == "SELECT format('%I', '100%')"


def test_a_text_made_at_run_time_is_no_statement():
    with pytest.raises(TypeError, match="Statements come from SQL files"):
        sql.Statement("x", "SELECT 1")
    with pytest.raises(TypeError, match="Statements come from SQL files"):
        dataclasses.replace(sql.shared.topics, text="SELECT 1")


# These run what is composed: they join statements that travel together, or stand before one of Django's.
RUNNERS = {
    "sql/__init__.py",
    "sql/beginning.py",
    "sql/prepared.py",
    "reading/dsn.py",
    "reading/rows.py",
    "publishing/session_settings.py",
}
COMPOSERS = {"statements.py"}
RUNNING = {"execute", "executemany", "copy", "exec_", "mogrify"}


@pytest.mark.slow
def test_no_text_made_at_run_time_reaches_a_cursor():
    wrong = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        if not (file := path.relative_to(PACKAGE).as_posix()).startswith("migrations/")  # they are frozen
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (file not in COMPOSERS and composes(node)) or (file not in RUNNERS and runs_a_text(node))
    ]
    assert wrong == []


def composes(node: ast.AST) -> bool:
    """Whether it makes statements, or SQL of psycopg's own. To look at a `Composable` of others is another matter."""
    if isinstance(node, ast.ImportFrom) and node.module in ("psycopg", "psycopg.sql"):
        forbidden = {"sql"} if node.module == "psycopg" else {alias.name for alias in node.names} - {"Composable"}
        return bool(forbidden & {alias.name for alias in node.names})
    if isinstance(node, ast.ImportFrom) and node.module == "django_events.statements":
        return any(alias.name.startswith("_") for alias in node.names)
    return (
        isinstance(node, ast.Call)
        and re.fullmatch(r"(\w+\.)?Statement|.*statements\._\w+", ast.unparse(node.func)) is not None
    )


def runs_a_text(node: ast.AST) -> bool:
    """Whether it gives anything but the text of a statement to a cursor or a connection."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in RUNNING:
        return False
    return bool(node.args) and not re.search(r"\.text(\.encode\(\))?$", ast.unparse(node.args[0]))


def test_a_file_is_read_once():
    assert sql.shared.topics is sql.shared.topics


def test_a_statement_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match=r"sql/shared\.sql has no statement 'no_such_statement'"):
        _ = sql.shared.no_such_statement
    with pytest.raises(FileNotFoundError):
        _ = sql.beside("django_events.no_such_module").claim


def test_a_union_keeps_the_order_of_its_statements():
    one, two = statements_of("one", "SELECT 1"), statements_of("two", "SELECT 2")

    assert sql.union_all([one, two]).text == "(SELECT 1)\nUNION ALL\n(SELECT 2)"
