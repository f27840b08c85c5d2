"""What a site does all day, by the commands of one version of the code, on a database of maybe another one."""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Public names and commands only: the code that runs it may be of any version.
PUBLISH = """
from django.core.management import call_command
from django_events import Draft, publish, publish_many
from django_events.models import Event
from testproject.shop.models import Invoice, Order, Product, Receipt

def place(count):
    tea, _ = Product.objects.get_or_create(sku="tea", defaults={"price": 1, "on_shelf": 1000})
    orders = [Order.objects.create(customer="Ada", product=tea, quantity=1, total=1) for _ in range(count)]
    drafts = [
        Draft(
            value={"order": order.pk, "total": "1.00", "customer": "Ada", "quantity": 1, "sku": "tea"},
            type="order.placed",
            key=str(order.pk % 5),
            metadata={"schema_version": 1},  # code of before knows none, and that of today reads it
        )
        for order in orders
    ]
    publish_many("orders", drafts[1:])
    first = drafts[0]
    publish("orders", first.value, type=first.type, key=first.key, metadata=first.metadata)
"""
LEAVE = """
place(20)
call_command("run_transfer", once=True)
call_command("run_consumer", all=True, once=True)
place(20)
call_command("run_transfer", once=True)
call_command("events", "publish", "stock", "{}", "--at", "2100-01-01T00:00:00Z", "--dedup-key", "once")
place(20)
"""
GO_ON = """
last = Event.objects.since("orders", 0).count()
place(20)
call_command("run_transfer", once=True)
call_command("run_consumer", all=True, once=True)
call_command("events", "maintain")
events = list(Event.objects.since("orders", 0).values_list("id", flat=True))
assert events == [*range(1, len(events) + 1)], events
assert len(events) >= last + 20
assert Invoice.objects.count() == len(events), "each order is billed once"
assert Receipt.objects.count() == len(events), "each order has one receipt"
"""


class Code:
    """A tree of the project's files; its commands run with it and nothing of this process's own code."""

    def __init__(self, tree: Path, url: str) -> None:
        self.tree = tree
        self.url = url

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "DATABASE_URL": self.url, "PYTHONPATH": str(self.tree)}
        variables.pop("DJANGO_SETTINGS_MODULE", None)
        return subprocess.run(
            [sys.executable, str(self.tree / "testproject/manage.py"), *arguments],
            env=variables,
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def manage(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.tree}: {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout


def leave_in_the_middle(code: Code) -> None:
    """Something in every place that an event can be in: handled, waiting for a handler, scheduled, in the buffer."""
    code.manage("shell", "-v0", "-c", PUBLISH + LEAVE)


def go_on(code: Code) -> None:
    """Publish, transfer, handle to the end, keep in order, and have it proved that all is well."""
    code.manage("shell", "-v0", "-c", PUBLISH + GO_ON)
    code.manage("events", "verify")


def tree_of(revision: str, folder: Path) -> Path:
    """The project's files as they were at a revision, in a new folder; FileNotFoundError if that can't be had."""
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise FileNotFoundError(f"git archive {revision}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        # Python 3.11 has no `filter=` before its fourth release.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder
