"""One consumer of each kind, on all topics of the shop; one with a single attempt, and three
that meet events which end their process."""

import os
from datetime import timedelta
from typing import Any

from django_events import Backoff, consumer, rollup, topic
from testproject.shop.events import orders, payments, stock
from tests.support.fault_app import handlers

echoes = topic("echoes")
outcomes = topic("outcomes")

STEADY: dict[str, Any] = {
    "lease": timedelta(seconds=float(os.environ.get("FAULT_LEASE", "2"))),
    "retry": Backoff(attempts=20, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=500)),
}
single = consumer(orders, payments, stock, name="single", **STEADY)(handlers.write_and_publish)
batched = consumer(orders, payments, stock, name="batched", batch_size=20, **STEADY)(handlers.write_all)
whole = consumer(orders, payments, stock, name="whole", partitioned=False, **STEADY)(handlers.write)
kept = consumer(orders, payments, stock, name="kept", types=["kept"], **STEADY)(handlers.write)
outside = consumer(orders, payments, stock, name="outside", transactional=False, **STEADY)(handlers.deliver)
outside_batched = consumer(
    orders, payments, stock, name="outside_batched", transactional=False, batch_size=20, **STEADY
)(handlers.deliver_all)

in_a_loop = consumer(orders, name="in_a_loop", **STEADY)(handlers.write_async)

QUEUE: dict[str, Any] = {"mode": "queue", **STEADY}
queued = consumer(orders, payments, stock, name="queued", outcomes=outcomes, **QUEUE)(handlers.write)
in_order = consumer(orders, payments, stock, name="in_order", ordered=True, **QUEUE)(handlers.write)
in_order_batched = consumer(
    orders,
    payments,
    stock,
    name="in_order_batched",
    ordered=True,
    batch_size=20,
    history=timedelta(days=1),
    outcomes=outcomes,
    **QUEUE,
)(handlers.write_all)
queued_outside = consumer(orders, payments, stock, name="queued_outside", transactional=False, **QUEUE)(
    handlers.deliver
)

once_only = consumer(stock, name="once_only", retry=Backoff(attempts=1))(handlers.write)

DOOMED: dict[str, Any] = {
    "lease": timedelta(seconds=1),
    "timeout": timedelta(seconds=1),
    "retry": Backoff(attempts=2, base=timedelta(milliseconds=50)),
}
doomed = consumer(orders, name="doomed", **DOOMED)(handlers.write)
doomed_batched = consumer(orders, name="doomed_batched", batch_size=20, **DOOMED)(handlers.write_all)
doomed_outside = consumer(orders, name="doomed_outside", transactional=False, **DOOMED)(handlers.deliver)
doomed_queued = consumer(orders, name="doomed_queued", mode="queue", ordered=True, **DOOMED)(handlers.write)
doomed_bare = consumer(stock, name="doomed_bare", **DOOMED)(handlers.write_bare)

takings = rollup(
    orders,
    payments,
    stock,
    name="takings",
    every=timedelta(hours=1),
    by={"of": "key", "kind": "type"},
    sums={"total": "$.total"},
    maxs={"most": "$.total"},
    lease=STEADY["lease"],
)

# Ticks only where a test moves its row: otherwise on the first of January.
yearly = echoes.every("0 0 1 1 *", type="tick")
alone = echoes.every("0 0 1 1 *", type="alone", overlap="skip")
