"""The documentation is complete: every public name has its line, every link leads somewhere."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import QuerySet
from django.dispatch import Signal

import django_events
from django_events import conf, exceptions, models, operations, pytest_plugin, signals, testing
from django_events.management import commands
from django_events.models.consumers import DeadLetterQuerySet
from django_events.models.deliveries import DeliveryQuerySet, OfConsumers, PastDeliveryQuerySet
from django_events.models.events import EventQuerySet
from django_events.observing.problems.telling import KINDS
from django_events.observing.state import STATE_METRICS
from django_events.telemetry import INSTRUMENTS
from django_events.workers.loop import Exit

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
INDEX = ROOT / "docs/index.md"
PACKAGE = Path(django_events.__file__).parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS_OF_README = {
    "Run it": (
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[demo]' && .venv/bin/python testproject/manage.py demo"
    ),
    "Test it": "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n 2",
}

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LOGGING = {"report", *(f"logger.{level}" for level in ("log", "info", "warning", "error", "exception", "critical"))}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def command_options() -> dict[str, list[str]]:
    """The options of each command of ours, without those that all of Django's commands have."""
    found = {}
    common = set(option_strings(BaseCommand()))
    for module in pkgutil.iter_modules(commands.__path__):
        options = option_strings(load_command_class("django_events", module.name))
        found[module.name] = sorted(set(options) - common)
    return found


def option_strings(command: BaseCommand) -> list[str]:
    parser: CommandParser = command.create_parser("manage.py", "command")
    return [string for action in parser._actions for string in action.option_strings if string.startswith("--")]


def error_names() -> list[str]:
    return [
        name
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and issubclass(value, exceptions.EventsError)
    ]


def check_ids() -> list[str]:
    return in_files("checks/*.py", r"django_events\.[EW]\d{3}")


def in_files(files: str, pattern: str) -> list[str]:
    texts = (path.read_text(encoding="utf-8") for path in PACKAGE.glob(files))
    return sorted({name for text in texts for name in re.findall(pattern, text)})


def log_records() -> list[tuple[str, str]]:
    """What modules of ours log by a text of their own, debugging apart, and by which logger."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(text_of(path))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        loggers = [c.args[0].value for c in calls if ast.unparse(c.func).endswith("getLogger") and is_text(c.args[:1])]
        for call in calls:
            name = ast.unparse(call.func)
            given = call.args[1:] if name in ("logger.log", "report") else call.args
            if name in LOGGING and is_text(given) and loggers and re.search("[a-z]{3}", given[0].value):
                found.add((loggers[0], re.sub(r"%[.\d]*[a-z]", "…", given[0].value)))
    return sorted(found)


def is_text(nodes: list[ast.expr]) -> bool:
    return bool(nodes) and isinstance(nodes[0], ast.Constant) and isinstance(nodes[0].value, str)


def sql_functions() -> list[str]:
    return in_files("migrations/*.py", r"CREATE (?:OR REPLACE )?FUNCTION (django_events_\w+)\(")


def queryset_verbs(queryset: type[QuerySet[Any]]) -> list[str]:
    return [name for name, value in vars(queryset).items() if inspect.isfunction(value) and name[0] != "_"]


def attributes_of_an_event() -> list[str]:
    """What a handler reads of an event."""
    attributes = [name for name, value in vars(django_events.ReceivedEvent).items() if inspect.isdatadescriptor(value)]
    return [name for name in attributes if name[0] != "_" and name != "columns"]


def subcommands() -> dict[str, CommandParser]:
    """The parsers of the subcommands of `events`."""
    parser = load_command_class("django_events", "events").create_parser("manage.py", "events")
    [choices] = [action.choices for action in parser._actions if action.dest == "subcommand"]
    return dict(choices)


def subcommand_options() -> dict[str, list[str]]:
    """What each subcommand takes that not all of them take, options by name and others by their metavar."""
    taken = {
        name: {
            max(action.option_strings, key=len) if action.option_strings else str(action.metavar)
            for action in parser._actions
        }
        for name, parser in subcommands().items()
    }
    return {name: sorted(options - set.intersection(*taken.values())) for name, options in taken.items()}


COMMANDS = command_options()
SUBCOMMANDS = subcommand_options()
# A verb of the log has a heading of its own; one of the dead letters says whose it is.
VERBS: dict[str, Callable[..., Any]] = {
    **{verb: getattr(EventQuerySet, verb) for verb in queryset_verbs(EventQuerySet)},
    **{f"DeadLetter.objects.{v}": getattr(DeadLetterQuerySet, v) for v in queryset_verbs(DeadLetterQuerySet)},
    **{
        f"{name}.objects.{verb}": getattr(queryset, verb)
        for name, queryset in {"Delivery": DeliveryQuerySet, "PastDelivery": PastDeliveryQuerySet}.items()
        for verb in queryset_verbs(OfConsumers) + queryset_verbs(queryset)
    },
}
CHANGES = [
    *django_events.__all__,
    *operations.__all__,
    *testing.__all__,
    *pytest_plugin.__all__,
    *(name.rpartition(".")[2] for name in VERBS),
    *conf.KEYS,
    *check_ids(),
    *error_names(),
    *COMMANDS,
    *(f"{command} {option}" for command, options in COMMANDS.items() for option in options),
    *(f"events {subcommand}" for subcommand in SUBCOMMANDS),
    *sql_functions(),
    *in_files("migrations/*.py", r"ERRCODE = '(\w+)'"),
]
LINES = [
    *(("python.md", name) for name in [*django_events.__all__, *VERBS, *models.__all__, *attributes_of_an_event()]),
    *(("python.md", name) for name in [*operations.__all__, *testing.__all__, *pytest_plugin.__all__]),
    *(("settings.md", key) for key in conf.KEYS),
    *(("checks.md", id) for id in check_ids()),
    *(("errors.md", name) for name in error_names()),
    *(("commands.md", name) for command, options in COMMANDS.items() for name in [command, *options]),
    *(("sql.md", name) for name in [*sql_functions(), *in_files("migrations/*.py", r"ERRCODE = '(\w+)'")]),
    *(("tables.md", getattr(models, name)._meta.db_table) for name in models.__all__),
]
PUBLIC = {name: getattr(django_events, name) for name in django_events.__all__}
BY_HAND = {name: getattr(operations, name) for name in operations.__all__}
TESTING = {name: getattr(testing, name) for name in testing.__all__}
OUTCOMES = {
    "Matched",
    "Move",
    "Rebuilt",
    "RemovedTopic",
    "Repartitioned",
    "Replayed",
    "Resharded",
    "Retried",
    "Searched",
    "Skipped",
    "Snapshot",
    "Subscribed",
    "WebhookAnswer",
}
SIGNATURES = [
    (name, value)
    for name, value in {**PUBLIC, **BY_HAND, **VERBS, **TESTING}.items()
    if name not in {"Claimed", "DELETE", "Deletion", "EventsError", "InboxMessage", "ReceivedEvent", "UNSET", *OUTCOMES}
]
COLUMNS = [
    (getattr(models, name)._meta.db_table, field.column)
    for name in models.__all__
    for field in getattr(models, name)._meta.concrete_fields
    if field.column
]


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """What stands below each heading, up to the next heading of any level; code is not mistaken for one."""
    plain = FENCE.sub(lambda block: re.sub(r"^#", "\\#", block[0], flags=re.MULTILINE), text)
    parts = re.split(r"^#+ (.+)$", plain, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        found[heading.strip("`")] = found.get(heading.strip("`"), "") + body
    return found


def has_line(text: str, name: str) -> bool:
    """Whether a heading or a row of a table is about this name."""
    name = re.escape(name)
    return bool(re.search(rf"^(?:#+ |\| \[?)`{name}`|^\| {name} \|", text, flags=re.MULTILINE))


def documented_parameters(code: str) -> list[tuple[str, object]]:
    """The parameters of the function, or the fields of the class, that a block shows, with their defaults."""
    [node] = ast.parse(code).body
    if isinstance(node, ast.ClassDef):
        if isinstance(node.body[0], ast.FunctionDef):
            return documented_parameters(ast.unparse(node.body[0]))[1:]  # without self
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        return [(ast.unparse(field.target), default_of(field.value)) for field in fields]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    places, only = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
    required: list[ast.expr | None] = [None] * (len(places) - len(node.args.defaults))
    defaults = [*required, *node.args.defaults, *node.args.kw_defaults]
    found = [(place.arg, default_of(default)) for place, default in zip([*places, *only], defaults, strict=True)]
    several, rest = ([(arg.arg, inspect.Parameter.empty)] if arg else [] for arg in (node.args.vararg, node.args.kwarg))
    return [*found[: len(places)], *several, *found[len(places) :], *rest]


def default_of(node: ast.expr | None) -> object:
    return inspect.Parameter.empty if node is None else eval(ast.unparse(node), {"timedelta": timedelta, **PUBLIC})


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    without_code = FENCE.sub("", text_of(page))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE):
        anchor, again = slug(heading), 0
        while (name := f"{anchor}-{again}" if again else anchor) in found:
            again += 1
        found.add(name)
    return found


def links() -> list[tuple[Path, str]]:
    """Every link to a place in this repository."""
    return [
        (page, target)
        for page in PAGES
        for target in LINK.findall(FENCE.sub("", text_of(page)))
        if not re.match(r"[a-z]+:", target)
    ]


def examples() -> list[tuple[Path, str]]:
    """Every block of Python."""
    return [
        (page, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE))
        for page in PAGES
        for indent, language, code in FENCE.findall(text_of(page))
        if language == "python"
    ]


def name_of(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value).split("\n")[0]


def test_the_lists_are_not_empty():
    assert COMMANDS["run_transfer"]
    assert SUBCOMMANDS["rewind"]
    assert all([check_ids(), error_names(), sql_functions(), VERBS, links(), examples(), COLUMNS])


def test_the_reference_has_a_line_for_every_name():
    assert [f"{name} in {page}" for page, name in LINES if not has_line(text_of(REFERENCE / page), name)] == []


def test_the_changelog_mentions_every_name():
    changes = text_of(ROOT / "CHANGELOG.md")
    assert [name for name in CHANGES if not re.search(rf"`{re.escape(name)}(?:\(.*?\))?`", changes)] == []


def test_the_reference_has_every_signature():
    headings = sections(text_of(REFERENCE / "python.md"))
    for name, value in SIGNATURES:
        _, _, code = FENCE.findall(headings[name])[0]
        actual = [(p.name, p.default) for p in inspect.signature(value).parameters.values()]
        assert documented_parameters(code) == actual, f"docs/reference/python.md has another signature of {name}."


def test_the_reference_has_every_column():
    tables = sections(text_of(REFERENCE / "tables.md"))
    assert [f"{table}.{column}" for table, column in COLUMNS if f"| `{column}` |" not in tables[table]] == []


def test_the_reference_has_every_exit_code():
    text = text_of(REFERENCE / "commands.md")
    assert [code.name for code in Exit if f"| {code.value} | `{code.name}` |" not in text] == []


def test_the_reference_has_every_subcommand_of_events_with_its_options():
    headings = sections(text_of(REFERENCE / "commands.md"))
    for subcommand, options in SUBCOMMANDS.items():
        section = headings[f"events {subcommand}"]
        _, _, usage = FENCE.findall(section)[0]
        assert f"manage.py events {subcommand}" in usage
        for one in options:
            assert re.search(rf"(?<![\w-]){one}(?![\w-])", usage), f"The usage of events {subcommand} has no {one}."
            assert not one.startswith("--") or has_line(section, one), f"events {subcommand} has no row for {one}."
    assert [one for one in ("--format", "--database", "--all-databases") if not has_line(headings["events"], one)] == []


def test_the_tree_of_errors_is_complete():
    assert [name for name in error_names() if not re.search(rf"\b{name}\b", exceptions.__doc__ or "")] == []


def test_every_link_leads_somewhere():
    for page, target in links():
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}, which is not there."
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)} links to {target}, a heading that is not there."


def test_the_index_leads_to_every_page():
    pages = [page for page in PAGES if page.parent != ROOT and page != INDEX]
    assert [page for page in pages if f"({page.relative_to(INDEX.parent).as_posix()})" not in text_of(INDEX)] == []


def test_the_readme_leads_to_every_page_but_the_decisions():
    pages = [page for page in PAGES if page.parent.parent == ROOT / "docs" and page.parent.name != "images"]
    listed = text_of(ROOT / "README.md")
    assert [page for page in pages if f"({page.relative_to(ROOT).as_posix()})" not in listed] == []


def test_who_uninstalls_is_told_of_every_table():
    tables = {model._meta.db_table for model in apps.get_app_config("django_events").get_models()}
    told = text_of(ROOT / "docs/how-to/uninstall.md")
    assert [table for table in sorted(tables) if f"`{table}`" not in told] == []


def test_a_contributor_finds_every_package_and_every_root_module():
    rows = [line for line in text_of(ROOT / "CONTRIBUTING.md").splitlines() if line.startswith("| `django_events/")]
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    modules = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]

    assert [name for name in packages if not any(f"{name}/`" in row for row in rows)] == []
    assert [name for name in modules if not any(re.search(rf"[`/]{re.escape(name)}`", row) for row in rows)] == []


def test_examples_are_python_and_import_what_exists():
    for page, code in examples():
        compile(code, name_of(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django_events"):
                module = importlib.import_module(node.module or "")
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, f"{name_of(page)} imports {missing} from {node.module}."


def test_the_readme_has_the_commands_of_one_line():
    for heading, command in COMMANDS_OF_README.items():
        expected = rf"^## {heading}\n\n```\w*\n{re.escape(command)}\n```$"
        assert re.search(expected, text_of(ROOT / "README.md"), flags=re.MULTILINE), heading


@pytest.mark.requirement("X10")
def test_the_reference_has_every_metric_and_names_no_other():
    text = text_of(REFERENCE / "metrics.md")
    metrics = [*INSTRUMENTS, *STATE_METRICS]
    rows = [f"| `{one.full_name}` | {one.kind} | {', '.join(one.labels)} | {one.help} |" for one in metrics]
    known = {metric.full_name for metric in metrics} | {"django_events_"}
    named = set(re.findall(r"django_events_\w+", text))

    assert [row for row in rows if row not in text] == []
    assert {name for name in named - known if re.sub("_(sum|count|bucket)$", "", name) not in known} == set()


def test_the_reference_has_every_kind_of_problem_in_the_order_of_importance():
    status = text_of(REFERENCE / "commands.md").partition("Problems come in this order")[2]
    said, _, table = status.partition("are errors, the others warnings:")
    rows = re.findall(r"^\| `([a-z ]+)` \|", table.partition("\n## ")[0].partition("\n\n`")[0], re.MULTILINE)
    of_metrics = text_of(REFERENCE / "metrics.md").partition("The kinds of `django_events_problems`")[2]

    assert rows == list(KINDS)
    assert set(re.findall("`([a-z ]+)`", said)) == {kind for kind, severity in KINDS.items() if severity == "error"}
    assert [kind for kind in KINDS if kind not in of_metrics.partition("`severity`")[0]] == []


@pytest.mark.slow
def test_the_reference_has_every_record_of_the_log():
    lines = text_of(REFERENCE / "metrics.md").splitlines()
    missing = [
        (logger, message)
        for logger, message in log_records()
        if not any(line.startswith(f"| `{logger}` |") and f"| {message} |" in line for line in lines)
    ]
    assert missing == []


def test_the_reference_has_every_signal():
    names = [name for name, value in vars(signals).items() if isinstance(value, Signal)]
    assert [name for name in names if not has_line(text_of(REFERENCE / "metrics.md"), name)] == []


@pytest.mark.parametrize(
    ("page", "heading"), [("CONTRIBUTING.md", "Where to change what"), ("docs/explanation/read-the-code.md", "")]
)
def test_the_files_that_a_reader_is_told_to_open_exist(page, heading):
    text = text_of(ROOT / page)
    named = re.findall(r"`((?:django_events|tests|docs)/[^`]*)`", sections(text)[heading] if heading else text)
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).exists()] == []
