"""Maintenance that is killed at each of its statements in turn, by itself, in a child process for each.

    python -m tests.support.killed_maintenance

Between two kills a publisher and a transfer give it something to do in each of its steps. The last line says how many
children were killed; one that got to its end comes after them.
"""

import os
import signal
import sys
from datetime import timedelta

import django

django.setup()

from django.db import connection, connections  # noqa: E402

from django_events import Draft, models, publish, publish_many  # noqa: E402
from django_events.log.transfer import Transfer  # noqa: E402
from django_events.models.functions import ClockTimestamp  # noqa: E402
from django_events.workers.maintaining import run_steps  # noqa: E402

LONG_AGO = timedelta(days=30)
GONE = 999_999  # the id of a consumer that is unknown
MOST = 1_000


def main() -> None:
    kills = 0
    while kills < MOST:
        give_work(kills)
        connections.close_all()
        child = os.fork()
        if not child:
            maintain_until(kills + 1)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            break
        assert os.WIFSIGNALED(status), f"it ended with {status}"
        kills += 1
        release_steps()
    print(kills)


def maintain_until(fatal: int) -> None:
    """All steps; a process that begins with the fatal statement doesn't live to see its end."""
    count = 0

    def killing(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(killing):
        outcomes = run_steps("default")
    failed = [one for one in outcomes if one.error or one.result is None]
    print(failed, file=sys.stderr)
    os._exit(1 if failed else 0)


def give_work(turn: int) -> None:
    """A segment to drop, one to make, some to compact, history, dedup keys that are too old, and orphans."""
    publish_many("orders", [Draft(value=f"{turn}/{n}", key=str(n % 7)) for n in range(60)])
    publish("payments", turn, dedup_key=str(turn))
    publish_many("payments", [Draft(value=turn, key=str(n % 7)) for n in range(120)])
    models.DedupKey.objects.update(expires_at=ClockTimestamp() - LONG_AGO)
    models.Delivery.objects.create(consumer_id=GONE, event_id=turn + 1, received_at=ClockTimestamp())
    transfer = Transfer("default")
    while transfer.move() or transfer.left:
        pass
    consumer = models.Consumer.objects.filter(mode="queue").order_by("pk").first()
    assert consumer is not None
    past = ClockTimestamp() - LONG_AGO
    models.PastDelivery.objects.create(
        consumer_id=consumer.pk,
        event_id=turn + 1,
        received_at=past,
        first_at=past,
        last_at=past,
        processed_at=past,
        attempts=0,
        delivered=1,
        outcome="handled",
        worker="a test",
    )


def release_steps() -> None:
    """As if the time of the process that died were over."""
    models.MaintenanceStep.objects.filter(leased_until__isnull=False).update(leased_until=None)


if __name__ == "__main__":
    main()
