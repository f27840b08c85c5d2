"""A shard is added and another one drained while publishers and workers run, and processes of all kinds are killed."""

import random
import signal
import time
from collections import defaultdict

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.support.fix_processes import NameTemplate
from tests.support.fix_servers import database_of
from tests.support.processes import Processes

pytestmark = pytest.mark.requirement("E11")
ALL = ("default", "west", "north")


@pytest.fixture
def settings_module() -> str:
    return "tests.support.sharded_settings"


class Shards:
    """Three databases of one server, and what happened there."""

    def __init__(self, processes: Processes, urls: dict[str, str]) -> None:
        self.processes = processes
        self.urls = urls
        self.workers: dict[str, object] = {}

    def ask(self, alias: str, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.urls[alias], autocommit=True) as session:
            return session.execute(query).fetchall()

    def effects(self, alias: str) -> int:
        [[count]] = self.ask(alias, "SELECT count(*) FROM consuming_app_effect")
        return int(str(count))

    def wait_for_more(self, alias: str, number: int) -> None:
        wanted = self.effects(alias) + number
        self.processes.wait_until(lambda: self.effects(alias) >= wanted, what=f"{number} more effects in {alias}")

    def handled(self) -> dict[tuple[str, str], list[int]]:
        """By consumer and key, what was handled anywhere, in the order in which that began."""
        found: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for alias in ALL:
            for consumer, note in self.ask(alias, "SELECT consumer, note FROM consuming_app_effect"):
                key, value, began = str(note).split()
                found[str(consumer), key].append((float(began), int(value)))
        return {of: [value for _, value in sorted(effects)] for of, effects in found.items()}

    def map_of(self, alias: str) -> tuple[object, ...] | None:
        rows = self.ask(alias, "SELECT version, shards, following FROM django_events_shardmap")
        return rows[0] if rows else None


@pytest.fixture
def shards(fault_server: Server, migrated: NameTemplate, processes: Processes, settings_module: str) -> Shards:
    urls = {"default": processes.url}
    for alias in ALL[1:]:
        with psycopg.connect(fault_server.url, autocommit=True) as session:
            session.execute(f"DROP DATABASE IF EXISTS {alias} WITH (FORCE)")
        urls[alias] = database_of(fault_server, alias, migrated(settings_module))
        processes.variables[f"{alias.upper()}_URL"] = urls[alias]
    return Shards(processes, urls)


def change_with_kills(shards: Shards, dice: random.Random, *arguments: str, version: int) -> None:
    """Change the map, killing the process that does it, and freezing another one, until the change is made."""
    processes = shards.processes
    command = ("events", "shards", *arguments, "--wait", "60s", "--execute")
    for _ in range(3):
        one = processes.start(*command)
        processes.wait_until(
            lambda: "changes" in processes.said(one) or one.poll() is not None or begun(shards, version),
            what="a change that begins",
        )
        time.sleep(dice.random() * 0.05)  # anywhere in it
        one.kill()
        one.wait()
    frozen, other = processes.start(*command), processes.start(*command)
    time.sleep(1 + dice.random())
    frozen.send_signal(signal.SIGSTOP)
    assert other.wait(120) in (0, 1), processes.said(other)
    ended = processes.run(*command)
    assert ended.returncode == 0, ended.stderr
    frozen.send_signal(signal.SIGCONT)
    frozen.wait(120)
    assert {shards.map_of(alias)[0] for alias in ALL if shards.map_of(alias)} == {version}
    assert all(one is None or one[2] is None for one in map(shards.map_of, ALL))


def begun(shards: Shards, version: int) -> bool:
    return any(one is not None and one[0] == version for one in map(shards.map_of, ALL))


@pytest.mark.parametrize("seed", [1])
def test_each_key_stays_in_order_while_shards_come_and_go_under_load(shards: Shards, seed: int):
    dice, processes = random.Random(seed), shards.processes
    made = processes.run("events", "shards", "add", "default", "west", "--execute", "--wait", "0s")
    assert made.returncode == 0, made.stderr
    commands = {
        "transfer": ("run_transfer", "--all-databases"),
        "worker": ("run_consumer", "--all", "--all-databases", "--threads", "2"),
        "another": ("run_consumer", "--all", "--all-databases"),
    }
    running = {name: processes.start(*command) for name, command in commands.items()}

    def kill(name: str) -> None:
        running[name].kill()
        running[name].wait()
        running[name] = processes.start(*commands[name])

    publishers = [processes.start_shard_publisher(name) for name in ("ada", "bob")]
    shards.wait_for_more("default", 30)
    shards.wait_for_more("west", 30)

    kill("worker")
    change_with_kills(shards, dice, "add", "north", version=2)
    kill("transfer")
    shards.wait_for_more("north", 60)
    kill("another")
    change_with_kills(shards, dice, "drain", "west", version=3)
    kill("transfer")
    kill("worker")
    shards.wait_for_more("default", 60)
    shards.wait_for_more("north", 60)
    for publisher in publishers:
        publisher.stop()

    published: dict[str, list[int]] = defaultdict(list)
    for publisher in publishers:
        for entry in publisher.entries():
            key, value = entry["values"][0].split()
            published[key].append(int(value))
    total = 2 * sum(map(len, published.values()))
    processes.wait_until(lambda: sum(map(shards.effects, ALL)) >= total, what=f"{total} effects")
    handled = shards.handled()
    assert {of[1] for of in handled} == set(published)
    for (consumer, key), values in handled.items():
        assert values == published[key], f"{consumer} of {key}"
    for alias in ALL:
        assert shards.ask(alias, "SELECT name FROM django_events_consumer WHERE waits_from IS NOT NULL") == []
    [[logged]] = shards.ask("west", "SELECT count(*) FROM django_events_event")
    assert int(str(logged)) > 0 and shards.ask("west", "SELECT FROM django_events_bufferedevent") == []
