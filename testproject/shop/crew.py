"""Who works in the shop: the transfer and the consumers, beside the customers."""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

from django_events.declarations import DeclaredConsumer
from django_events.workers.all_in_one import AllInOne, Done
from django_events.workers.stopping import Stop
from testproject.shop import events

CONSUMERS: list[DeclaredConsumer] = [events.bill, events.index, events.send_receipt, events.follow, events.earnings]
CREW = [*CONSUMERS, events.by_type]


@contextmanager
def crew_at_work(consumers: Sequence[DeclaredConsumer] = CREW) -> Iterator["Future[Done]"]:
    """The transfer and the consumers, until the block ends; their error comes out at the end."""
    logging.getLogger("django_events.consumer").setLevel(logging.CRITICAL)  # what fails here is in the table
    stop = Stop()
    with closing(AllInOne("default", consumers, threads=2)) as crew, ThreadPoolExecutor(1) as executor:
        working = executor.submit(crew.run, stop)
        try:
            yield working
        finally:
            stop.request()
        working.result()
    stop.close()
