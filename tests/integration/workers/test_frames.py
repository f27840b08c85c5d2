"""How deep a handler is called: a traceback has to show a user more of the handler than of the worker."""

import sys

import pytest

from tests.support.fix_consumers import run_once
from tests.support.fix_queues import fill_topic

MOST = 10  # frames between the thread's own function and the handler

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")


def depth() -> list[str]:
    """The functions between a thread's target and the handler."""
    names, frame = [], sys._getframe(2)
    while frame and frame.f_code.co_name != "target":
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.parametrize("transactional", [True, False])
def test_few_frames_lie_between_a_workers_thread_and_a_handler(things, make_consumer, mode, transactional):
    seen = []

    def handler(event):
        seen.append(depth())

    reader = make_consumer(things, handler=handler, mode=mode, transactional=transactional)
    fill_topic(things, 1)
    run_once(reader)

    [names] = seen
    assert 0 < len(names) <= MOST, names
