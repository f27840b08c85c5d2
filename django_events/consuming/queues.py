"""Queue consumers: what is in hand is handled and settled, as far as there is time, and the rest given back.

queue = Queue(subscription, holder="host:7")
if hand := queue.claim(100):
    serve_hand(hand, handler, on_failure=log_failure(hand))
"""

import time
from collections.abc import Callable

from django_events.consuming import streams
from django_events.consuming.deliveries import Hand
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import Handling, OnFailure


def serve_hand(
    hand: Hand, handler: BoundHandler, *, on_failure: OnFailure, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Handle and settle what is in hand, for a turn; returns how many events were passed.

    With LeaseLost or any other error, nothing is settled but what was before: give the hand up then.
    """
    ends_at = time.monotonic() + streams.TURN
    commit_at = 0.0
    handling = Handling(
        hand, handler, enough=lambda: stopping() or time.monotonic() >= commit_at, on_failure=on_failure
    )
    at_once = handler.consumer.batch_size
    passed, begun = 0, False
    while hand.events and not (begun and (stopping() or time.monotonic() >= ends_at)):
        begun = True
        commit_at = time.monotonic() + streams.TRANSACTION
        passed += handling.handle(hand, hand.events[:at_once])
    hand.release()
    return passed
