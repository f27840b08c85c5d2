"""The SQL functions by which programs in any language claim and settle events of a queue.

    CREATE_WORKER_FUNCTIONS = created()    # as it stands in a migration

They are made of the statements that Python's workers run, so that both do the same. A migration keeps the text that was
made of them; where a statement changes, a test says so, and the next migration replaces the functions.
"""

import re

from django_events import sql
from django_events.consuming import failures, fingerprints, reading
from django_events.consuming.leases import SQL as LEASES
from django_events.consuming.programs.handed_out import SQL as HANDED_OUT
from django_events.consuming.queues import filling
from django_events.consuming.queues.claimed_deliveries import SQL as CLAIMED
from django_events.consuming.queues.deliveries import LARGEST_WINDOW, SMALLEST_WINDOW
from django_events.consuming.queues.deliveries import SQL as DELIVERIES
from django_events.consuming.subscribed import SQL as SUBSCRIBED
from django_events.statements import SMALL, Statement, as_text

SQL = sql.beside(__name__)

_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
_READ = ("topic_id", "event_ids", "consumer_id", "bytes")
_BURY = ("topic_id", "event_id", "consumer_id", "attempts", "error", "traceback", "fingerprint")
_LIMITS = {
    "longest_error": str(failures.LONGEST_ERROR),
    "longest_traceback": str(failures.LONGEST_TRACEBACK),
    "longest_fingerprint": str(fingerprints.LONGEST),
}


def created() -> str:
    """The SQL that makes all of them, those first that others hold by their OIDs."""
    ordered = {
        "open": DELIVERIES.open_to_claims,
        "known": sql.all_of([]),
        "waited": DELIVERIES.waited.on(received=DELIVERIES.received_in_window),
        "received": DELIVERIES.received_in_window,
        "leasing": DELIVERIES.lease_picked,
    }
    begins = {"settings": SQL.settings.text, "at_home": SQL.at_home.text}
    lost = {"lease_lost": SQL.lease_lost.text}
    return ";\n\n".join(
        [
            SQL.read_of.written(bounded=_bounded()),
            SQL.settle_of.written(
                settle_deliveries=_with_variables(CLAIMED.settle_deliveries.on(told=CLAIMED.tell_outcomes))
            ),
            SQL.bury_of.written(bury_unread=_bury(), differing=fingerprints.DIFFERING.pattern, **_LIMITS),
            SQL.count_of.written(
                lock_position=_with_variables(DELIVERIES.lock_position),
                move_up=_with_variables(DELIVERIES.move_up),
                add_counts=_with_variables(DELIVERIES.add_counts),
            ),
            SQL.end_of.written(
                end_holder=_with_variables(sql.shared.end_holder),
                wait_for_holder=_with_variables(LEASES.wait_for_holder),
            ),
            SQL.fill_of.written(
                at_once=str(filling.AT_ONCE),
                lock_filling=_with_variables(filling.SQL.lock_filling),
                last_readable=sql.shared.last_readable.written(log="%1$s", topic_id="%2$s", after="%3$s"),
                pending_deliveries=_with_variables(filling.SQL.pending_deliveries),
                fill=filling.SQL.fill.written(
                    log="%1$s",
                    consumer_id="%2$s",
                    topic_id="%3$s",
                    after="%4$s",
                    upper="%5$s",
                    match=SQL.match_registered.text,
                ),
                count_behind=sql.shared.count_behind.written(log="%1$s", topic_id="%2$s", after="%3$s", upper="%4$s"),
                filled=_with_variables(filling.SQL.filled),
            ),
            SQL.lease_of.written(
                smallest_window=str(SMALLEST_WINDOW),
                largest_window=str(LARGEST_WINDOW),
                enter=_with_variables(DELIVERIES.enter),
                take_over=_with_variables(DELIVERIES.take_over.on(known=ordered["known"])),
                claim_ordered=_with_variables(DELIVERIES.claim_ordered.on(**ordered)),
                claim_unordered=_with_variables(DELIVERIES.claim_unordered.on(**ordered)),
                overdue_leases=_with_variables(DELIVERIES.overdue_leases),
            ),
            SQL.under_token.written(deliveries_of_token=_with_variables(HANDED_OUT.deliveries_of_token)),
            SQL.claim_of.written(
                note_served=_with_variables(SUBSCRIBED.note_served),
                count_delivery_attempt=_with_variables(CLAIMED.count_delivery_attempt),
                split_lease=_with_variables(CLAIMED.split_lease),
                too_long=reading.TOO_LONG,
                **begins,
            ),
            SQL.ack_of.written(**begins, **lost),
            SQL.nack_of.written(longest_error=_LIMITS["longest_error"], **begins, **lost),
            SQL.extend_of.written(extend_lease=_with_variables(CLAIMED.extend_lease), **begins, **lost),
            SQL.claim.text,
            SQL.ack.text,
            SQL.nack.text,
            SQL.extend.text,
            SQL.revoke_all.text,
        ]
    )


def _with_variables(statement: Statement) -> str:
    """A statement in a function, whose parameters are variables there: `%(token)s` is `given_token`."""
    return _PARAMETER.sub(lambda found: f"given_{found[1]}" if found[1] else "%", statement.text)


def _numbered(text: str, parameters: tuple[str, ...]) -> str:
    return _PARAMETER.sub(lambda found: f"${parameters.index(found[1]) + 1}" if found[1] else "%", text)


def _bounded() -> str:
    value, metadata = (as_text("e", column, small=SMALL).text for column in ("value", "metadata"))
    log = CLAIMED.read_deliveries.written(log="%1$s", first="%2$s", last="%3$s")
    chosen = SQL.readable.written(log=log, buried=sql.shared.read_dead_letters.text)
    return _numbered(reading.SQL.bounded.written(chosen=chosen, bytes="$4", value=value, metadata=metadata), _READ)


def _bury() -> str:
    return _numbered(failures.SQL.bury_unread.written(log="%1$s", topic_id="$1", event_id="$2"), _BURY)
