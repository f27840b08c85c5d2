"""What `run_inbox --once` takes in of a source with places, and how what it takes in is counted."""

from contextlib import closing

import pytest

from django_events import Draft
from django_events.bridges.inboxes import back_pressure
from django_events.bridges.inboxes.serving import worker_of
from django_events.bridges.inboxes.sources import Found
from django_events.workers.all_in_one import AllInOne
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_inboxes import row, take_in, values
from tests.support.paper import FromPaper, Paper, PaperReader

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]


class SilentReader(PaperReader):
    """Doesn't tell how many messages there are."""

    def read(self, places, most):
        found = super().read(places, most)
        return Found(found.messages, found.gone)


class FromSilentPaper(FromPaper):
    def reader(self):
        return SilentReader(self.paper, self.breaks)


def bodies(*numbers):
    return [b"%d" % n for n in numbers]


@pytest.mark.parametrize("kind", [FromPaper, FromSilentPaper])
def test_once_ends_at_what_was_there_although_more_comes_all_the_time(things, make_inbox, kind):
    """Where the source doesn't tell how much that is, it ends when nothing is left."""
    paper = Paper()
    paper.put(bodies(*range(20)))

    def busy(message):
        if kind is FromPaper or message.json() < 20:
            paper.put(bodies(message.json() + 20))
        return Draft(value=message.json())

    take_in(make_inbox(things, source=kind(paper), transform=busy, batch_size=7))

    assert values(things) == list(range(21 if kind is FromPaper else 40))
    assert row().error == ""


def test_once_ends_at_what_was_there_although_it_has_to_wait_for_the_transfer(things, make_inbox, monkeypatch):
    """What was there counts from the beginning of the run, and not from where it goes on."""
    monkeypatch.setattr(back_pressure, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(back_pressure, "RESTS", 0)
    paper = Paper()
    paper.put(bodies(*range(20)))

    def busy(message):
        if message.json() < 200:
            paper.put(bodies(message.json() + 20))
        return Draft(value=message.json())

    inbox = make_inbox(things, source=FromPaper(paper), transform=busy, batch_size=4, most_buffered=6)
    taking_in = [worker_of("default", inbox, once=True)]
    with closing(AllInOne("default", [], taking_in=lambda once: taking_in)) as workers, closing(Stop()) as stop:
        workers.run(stop, once=True)

    assert values(things) == list(range(20))


def test_what_comes_later_is_taken_in_by_the_next_one(things, make_inbox):
    paper = Paper()
    paper.put(bodies(0, 1, 2))
    inbox = make_inbox(things, source=FromPaper(paper), transform=lambda message: Draft(value=message.json()))
    assert take_in(inbox) == 3
    assert take_in(inbox) == 0
    paper.put(bodies(3))
    assert take_in(inbox) == 1

    assert values(things) == [0, 1, 2, 3]


def test_an_inbox_that_goes_on_takes_in_what_comes(things, make_inbox):
    paper = Paper()
    paper.put(bodies(0))
    inbox = make_inbox(things, source=FromPaper(paper), transform=lambda message: Draft(value=message.json()))
    with closing(Stop()) as stop, closing(worker_of("default", inbox)) as worker:
        worker.connect()
        assert worker.work(stop) == 1
        paper.put(bodies(1))
        assert worker.work(stop) == 1
        assert run(worker, stop, once=True) == 0


def test_what_is_dropped_by_its_own_dedup_key_is_left_out(things, make_inbox):
    paper = Paper()
    paper.put(bodies(1, 2, 3))
    inbox = make_inbox(
        things, source=FromPaper(paper), transform=lambda message: Draft(value=message.json(), dedup_key="k")
    )
    assert take_in(inbox) == 3

    assert values(things) == [1]
    assert (row().taken, row().left_out) == (1, 2)
