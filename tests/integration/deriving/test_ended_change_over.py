"""The server ends a change-over behind each of its statements: nothing of it is there, and the next one is whole.

Its process has died, or was frozen and wakes up when another one is through.
"""

import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import InterfaceError, OperationalError, connection

from django_events import Draft, publish_many
from django_events.deriving import rebuilding
from django_events.models import Rebuild
from django_events.models.functions import ClockTimestamp
from django_events.operations import lag, rebuild
from tests.integration.deriving.test_projections import add, order, totals
from tests.integration.deriving.test_rebuilding import ask, filled
from tests.support.fix_consumers import positions, serve_due
from tests.support.fix_rollups import by_group, table_of
from tests.support.fix_topics import transfer_all
from tests.support.projecting_app.models import CustomerTotal

pytestmark = pytest.mark.usefixtures("transactional_db")

MOST = 100  # statements


class ServerEnds:
    """Has the server end this thread's session behind the statement of a number, of those of its change-over."""

    def __init__(self, server, monkeypatch, meanwhile=lambda: None):
        self.server, self.meanwhile = server, meanwhile
        self.behind = self.seen = 0
        self._thread, change_over = threading.get_ident(), rebuilding._Rebuilding._change_over

        def watched(*args):
            if threading.get_ident() != self._thread:
                return change_over(*args)
            with connection.execute_wrapper(self):
                return change_over(*args)

        monkeypatch.setattr(rebuilding._Rebuilding, "_change_over", watched)

    def __call__(self, execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        self.seen += 1
        if self.seen == self.behind:
            ended = "SELECT pg_terminate_backend(%s, 10000)"
            assert self.server.execute(ended, [connection.connection.info.backend_pid]).fetchone() == (True,)
            self.server.execute("UPDATE django_events_rebuild SET leased_until = clock_timestamp()")
            self.meanwhile()
        return answer

    def rebuilds(self, consumer, behind):
        """Whether a rebuild that is ended behind this statement has so many."""
        self.behind, self.seen = behind, 0
        with suppress(OperationalError, InterfaceError):
            rebuild(consumer)
        connection.close()
        Rebuild.objects.update(leased_until=ClockTimestamp())
        return self.seen >= behind


def schemas():
    return ask("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'django_events_rebuild%%'")


@pytest.mark.requirement("X13")
@pytest.mark.long
def test_a_change_over_that_was_killed_is_undone_and_made_again(things, make_projection, connect, monkeypatch):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)
    publish_many(things, [order("late", 1)])
    transfer_all()
    server = ServerEnds(connect(autocommit=True), monkeypatch)
    undone = 0
    for behind in range(1, MOST):
        CustomerTotal.objects.update(total=-1)
        before, [at] = totals(), positions(projection).values_list("position", "token")
        if not server.rebuilds(projection, behind):
            break
        if Rebuild.objects.exists():
            assert totals() == before and positions(projection).values_list("position", "token")[0] == at
            undone += 1
        else:  # it was over, but for the process
            assert totals() == {**expected, "late": (1, 1)}
    assert undone > 10 and behind < MOST - 1
    assert totals() == {**expected, "late": (1, 1)} and lag(projection) == 0 and not schemas()
    filled(things, projection, order("late", 2))
    assert totals() == {**expected, "late": (2, 3)}


@pytest.mark.requirement("X13")
@pytest.mark.long
def test_a_change_over_that_froze_and_wakes_up_too_late_does_nothing(
    things, make_projection, connect, monkeypatch, in_thread
):
    projection = make_projection(things, into=CustomerTotal, fold=add)
    expected = filled(things, projection)

    def another():
        rebuild(projection)
        publish_many(things, [order("late", 1)])
        transfer_all()
        serve_due(projection)

    server = ServerEnds(connect(autocommit=True), monkeypatch, lambda: in_thread(another).result())
    for behind in range(1, MOST, 2):
        CustomerTotal.objects.update(total=-1)
        if not server.rebuilds(projection, behind):
            break
        late = (behind + 1) // 2
        assert totals() == {**expected, "late": (late, late)}
        assert lag(projection) == 0 and not Rebuild.objects.exists() and not schemas()
    assert 10 < behind < MOST - 1


@pytest.mark.slow
@pytest.mark.requirement("H3")
def test_a_change_over_of_a_rollup_that_was_killed_is_undone_and_made_again(things, make_rollup, connect, monkeypatch):
    counted = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"})
    publish_many(things, [Draft(value={"store": "ab"[n % 2]}) for n in range(30)])
    transfer_all()
    serve_due(counted)
    server = ServerEnds(connect(autocommit=True), monkeypatch)
    for behind in range(1, MOST):
        ask(f"UPDATE {table_of(counted)} SET count = 0 WHERE bucket > '-infinity'")
        if not server.rebuilds(counted, behind):
            break
        left = Rebuild.objects.exists()
        assert by_group(counted, "store", "count") == dict.fromkeys("ab", 0 if left else 15)
    assert 10 < behind < MOST - 1
    assert by_group(counted, "store", "count") == {"a": 15, "b": 15} and lag(counted) == 0 and not schemas()
