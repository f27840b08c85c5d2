"""The suites for bridges and sources of a site's own: what keeps all promises passes, and each one can be broken."""

from dataclasses import replace

import pytest

from django_events.testing import check_source, check_target
from tests.support.paper import FromPaper, FromTray, Paper, SharedPaper, ToPaper, Tray

pytestmark = pytest.mark.requirement("X20", "X21")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What waits for nothing needs less than a second here."""
    monkeypatch.setattr("django_events.bridges.promises.SOON", 1.0)
    monkeypatch.setattr("django_events.bridges.inboxes.source_promises.SOON", 1.0)
    monkeypatch.setattr("django_events.bridges.inboxes.queue_promises.SOON", 1.0)


def check_paper_target(breaks="", target=ToPaper):
    paper = Paper()
    return check_target(
        target(paper, breaks=breaks),
        received=lambda: paper.entries,
        refused=lambda message: replace(message, body=b"too large"),
        stop=paper.stop,
        start=paper.start,
        secrets=["hunter-two"],
        seconds=1.0,
    )


def check_paper_source(breaks=""):
    paper = Paper()
    return check_source(
        FromPaper(paper, breaks=breaks),
        put=paper.put,
        remove=paper.remove,
        replace=paper.replace,
        stop=paper.stop,
        start=paper.start,
        secrets=["hunter-two"],
        seconds=1.0,
    )


def check_tray(breaks="", *, in_order=True, **options):
    tray = Tray()
    return check_source(
        FromTray(tray, breaks=breaks, in_order=in_order),
        put=tray.put,
        stop=tray.stop,
        start=tray.start,
        secrets=["hunter-two"],
        seconds=1.0,
        **options,
    )


def test_a_target_that_keeps_all_promises_passes():
    assert set(check_paper_target().values()) == {"kept"}


def test_a_target_whose_bridges_share_something_passes_if_these_keep_all_promises():
    assert set(check_paper_target(target=SharedPaper).values()) == {"kept"}


@pytest.mark.parametrize(
    "breaks", ["shares one bridge", "shares doubles", "close takes all along", "pen is closed once"]
)
def test_what_bridges_that_share_something_break_is_said(breaks):
    with pytest.raises(AssertionError, match=r"(?s)SharedPaper breaks 1 of \d+ promises of a bridge.*\n  shared: "):
        check_paper_target(breaks, SharedPaper)


def test_a_source_that_keeps_all_promises_passes():
    assert set(check_paper_source().values()) == {"kept"}


@pytest.mark.parametrize("in_order", [True, False])
def test_a_queue_that_keeps_all_promises_passes(in_order):
    assert set(check_tray(in_order=in_order).values()) == {"kept"}


def test_a_queue_of_texts_is_asked_for_texts():
    assert set(check_tray("bodies", is_text=True).values()) == {"kept"}


@pytest.mark.parametrize(
    ("breaks", "promise"),
    [
        ("problems", "declared"),
        ("no name", "declared"),
        ("window", "declared"),
        ("holds", "declared"),
        pytest.param("waits", "nothing", marks=pytest.mark.slow),
        pytest.param("reversed", "order", marks=pytest.mark.slow),
        pytest.param("bodies", "order", marks=pytest.mark.slow),
        pytest.param("bare", "order", marks=pytest.mark.slow),
        pytest.param("in use", "order", marks=pytest.mark.slow),
        pytest.param("forgets nothing", "forgotten", marks=pytest.mark.slow),
        ("same identity", "messages"),
        ("headers", "messages"),
        pytest.param("too many", "most", marks=pytest.mark.slow),
        pytest.param("forgets at once", "forgotten", marks=pytest.mark.slow),
        pytest.param("keeps what it had", "forgotten", marks=pytest.mark.slow),
        ("other identity", "forgotten"),
        pytest.param("given back is lost", "given_back", marks=pytest.mark.slow),
        ("given back behind", "given_back"),
        pytest.param("shares", "twin", marks=pytest.mark.slow),
        pytest.param("gives nothing", "twin", marks=pytest.mark.slow),
        pytest.param("lag", "lag", marks=pytest.mark.slow),
        ("keep raises", "keeping"),
        pytest.param("keep waits", "keeping", marks=pytest.mark.slow),
        ("main thread", "thread"),
        ("other error", "outage"),
        ("secret", "outage"),
        pytest.param("no outage", "outage", marks=pytest.mark.slow),
        ("close raises", "closing"),
    ],
)
def test_a_queue_that_breaks_a_promise_is_told_which(breaks, promise):
    with pytest.raises(AssertionError, match=r"^FromTray breaks") as raised:
        check_tray(breaks)
    assert promise in broken(raised.value)


def broken(error):
    """The promises that an error names."""
    return [line.split(":")[0].strip() for line in str(error).splitlines()[1:]]


@pytest.mark.parametrize(
    ("breaks", "promise"),
    [
        ("problems", "declared"),
        ("prefix", "declared"),
        ("route", "declared"),
        ("one bridge", "declared"),
        ("empty is 1", "empty"),
        ("reversed", "order"),
        ("not acknowledged", "order"),
        ("one answer short", "order"),
        ("mixes keys", "keys"),
        ("no empty body", "content"),
        ("main thread", "thread"),
        ("newest is behind", "newest"),
        ("another relay", "newest"),
        ("doubles", "overtaken"),
        ("rest is sent", "overtaken"),
        ("refused stops all", "refused"),
        ("refused is there", "refused"),
        ("dead letter is newest", "redriven"),
        ("other error", "outage"),
        ("secret", "outage"),
        ("close raises", "closing"),
        ("close twice", "closing"),
    ],
)
def test_a_target_that_breaks_a_promise_is_told_which(breaks, promise):
    with pytest.raises(AssertionError, match=r"^ToPaper breaks") as raised:
        check_paper_target(breaks)
    assert promise in broken(raised.value)


@pytest.mark.parametrize(
    ("breaks", "promise"),
    [
        ("problems", "declared"),
        ("no name", "declared"),
        ("reversed", "order"),
        pytest.param("leaves out", "order", marks=pytest.mark.slow),
        ("bodies", "order"),
        ("ids", "messages"),
        ("headers", "messages"),
        ("places", "places"),
        pytest.param("keeps its position", "no_position", marks=pytest.mark.slow),
        ("end is beginning", "start"),
        ("begins at it", "start"),
        ("nonsense", "start"),
        ("too many", "most"),
        pytest.param("read waits", "nothing", marks=pytest.mark.slow),
        pytest.param("wait is late", "nothing", marks=pytest.mark.slow),
        pytest.param("wait sleeps", "waiting", marks=pytest.mark.slow),
        ("lag", "lag"),
        ("main thread", "thread"),
        ("gone is not told", "gone"),
        ("gone is miscounted", "gone"),
        ("other error", "outage"),
        ("secret", "outage"),
        ("close raises", "closing"),
        ("takes another", "replaced"),
    ],
)
def test_a_source_that_breaks_a_promise_is_told_which(breaks, promise):
    with pytest.raises(AssertionError, match=r"^FromPaper breaks") as raised:
        check_paper_source(breaks)
    assert promise in broken(raised.value)


def test_what_cannot_be_checked_is_said():
    paper = Paper()
    found = check_source(FromPaper(paper), put=paper.put)
    assert found["gone"] == "not checked: remove isn't given"
    assert found["outage"] == "not checked: stop isn't given"
    assert found["order"] == "kept"
    assert check_tray("cannot tell")["lag"] == "not checked: lag() is None: the source can't tell"


def test_a_target_without_order_is_asked_for_none():
    paper = Paper()

    def check(**options):
        return check_target(ToPaper(paper, breaks="reversed"), received=lambda: paper.entries, **options)

    with pytest.raises(AssertionError, match="of the key"):
        check()
    paper.replace()
    paper.newest = 0
    with pytest.raises(AssertionError) as raised:
        check(in_order=False)
    assert broken(raised.value) == ["overtaken"]  # it tells the newest message, and so has an order


def test_all_that_is_broken_is_said_at_once_and_without_secrets():
    with pytest.raises(AssertionError) as raised:
        check_paper_target("secret")
    assert "the text of its TargetUnavailable has a secret in it" in str(raised.value)
    assert "hunter-two" not in str(raised.value)
