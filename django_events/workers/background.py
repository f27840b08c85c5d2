"""A worker in a thread of its own, beside what the process does otherwise.

with closing(Listener("default")) as listener, in_background(TransferWorker("default", listener)):
    ...
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections

from django_events.workers.loop import Worker, run
from django_events.workers.stopping import Stop


@contextmanager
def in_background(
    worker: Worker,
    *,
    on_error: Callable[[], None] = lambda: None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[list[BaseException]]:
    """Run a worker in a thread until the block ends. Its error is in the list at once, and is raised at the end."""
    stop = Stop()
    errors: list[BaseException] = []

    def target() -> None:
        try:
            run(worker, stop, on_progress=on_progress)
        except BaseException as error:
            errors.append(error)
            on_error()
        finally:
            worker.close()
            connections.close_all()

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        stop.request()
        thread.join()
        stop.close()
    if errors:
        raise errors[0]
