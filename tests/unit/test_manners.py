"""The package asks Django, psycopg and Python by their public names, and replaces nothing of theirs.

What it does all the same is listed here, with a reason for each. Another one is a decision: find the public way first.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import django_events

PACKAGE = Path(django_events.__file__).parent

# Names with an underscore that others have.
PRIVATE = {
    "_asdict": "documented: named tuples",
    "_auto_deps": "migrations that capture() writes wait for the topic; makemigrations has no other place to say so",
    "_base_manager": "documented: the manager that no site filters",
    "_exit": "documented: os._exit() of a child, and of a process whose handler never comes back",
    "_fields": "documented: named tuples",
    "_gateway": "Spark's file systems are Java's, and PySpark has no other door to them",
    "_getframe": "where a topic was declared, for errors; inspect.stack() reads the source of each frame",
    "_jsparkSession": "as _gateway",
    "_jvm": "as _gateway",
    "_make": "documented: named tuples",
    "_meta": "documented: fields and names of a model",
    "_replace": "documented: named tuples",
    "_sort_migrations": "as _auto_deps",
    "_strip_protocol": "documented: what each file system of fsspec makes of an address, which no public function asks",
    "_worker_functions": "of our migrations: Django takes a module without an underscore for one more",
    "_state": "documented: the database that a row is from",
}
# Attributes of others that are set, or deleted.
REPLACED = {
    "__cause__": "documented: the cause of an error",
    "Database": "of a connection that a probe has for itself: psycopg with a limit of time",
    "MigrationAutodetector": "django-pgtrigger does the same, and Django has one of these for each command",
    "args": "what an error says, without a row's values",
    "auto_decode": "documented: of a channel of amqp, whose connection does not pass it on; bodies are bytes",
    "autodetector": "documented for subclasses of the command; with any command, captures wait for their topic",
    "blocked_by": "what an error of the database that waited for a lock says beside its message",
    "call_soon_threadsafe": "of the loop that runs a handler, while it runs: a fork in it would tell a dead loop",
    "current_app": "documented: the admin's instance, for the addresses of its pages",
    "delete": "of the file system of one Iceberg table: PyIceberg would delete the manifests of a commit that landed",
    "execute_wrappers": "see docs/explanation/decisions/0038-triggers-are-told-by-a-wrapper-that-stays.md",
    "own_writes": "of a view, as csrf_exempt is: a middleware finds it there",
    "reads_own_writes": "documented: of a request, as its user is",
    "isolation_level": "documented: a psycopg connection's",
    "prepare_threshold": "documented: a psycopg connection's, of the transfer alone",
    "settings_dict": "as Database",
}


@cache
def modules() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def names_made(*within: ast.AST) -> set[str]:
    """What is defined there: functions, classes, variables, and attributes of self."""
    made = set()
    for node in (node for tree in within for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                made.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                made.add(name)
    return made


def fields_made(tree: ast.AST) -> set[str]:
    """The attributes that objects of its classes have."""
    made = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for line in owner.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    made.add(name)
    return made


def is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


@cache
def names_of_package() -> set[str]:
    return names_made(*modules().values())


def private_names(tree: ast.Module) -> Iterator[str]:
    made = names_made(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, value=value) if name.startswith("_") and not name.startswith("__"):
                ours = names_of_package() if ast.unparse(value) in ("self", "cls") else made
                if name not in ours or is_super(value):
                    yield name
            case ast.ImportFrom(module=str(module), names=names):
                ours = module.split(".")[0] == "django_events"
                yield from (part for part in module.split(".") if part.startswith("_") and not part.startswith("__"))
                yield from (one.name for one in names if one.name.startswith("_") and not ours)


def test_private_names_of_others_are_on_a_short_list():
    found = {name: where for where, tree in modules().items() for name in private_names(tree)}

    assert {name: where for name, where in found.items() if name not in PRIVATE} == {}
    assert set(PRIVATE) - set(found) == set(), "no longer used"


@pytest.mark.slow
def test_nothing_of_others_is_replaced_but_what_is_on_a_short_list():
    ours = set().union(*map(fields_made, modules().values()))
    found = {
        node.attr: f"{where}:{node.lineno}"
        for where, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        if node.attr not in ours
    }

    assert {name: where for name, where in found.items() if name not in REPLACED} == {}
    assert set(REPLACED) - set(found) == set(), "no longer replaced"


@pytest.mark.slow
def test_connections_of_django_are_not_assigned():
    assigned = [
        f"{where}:{node.lineno}"
        for where, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if ast.unparse(node.value) == "connections"
    ]
    assert assigned == []


@pytest.mark.slow
def test_no_signal_of_the_process_is_handled_outside_of_commands():
    """A command is a process of ours, and PySpark's session takes Ctrl-C, which is given back."""
    handling = {
        where
        for where, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal"
    }
    assert handling == {
        "live/server_sent_events.py",  # where the site's asgi.py asks for it
        *("management/reloading.py", "spark/session.py", "workers/stopping.py"),
    }
