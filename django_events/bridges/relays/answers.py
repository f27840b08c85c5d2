"""The answers of a broker to the messages of a batch, where it answers one by one, and what a bridge says of them.

answers = [UNANSWERED] * len(messages)
...                                       # None, or an error, for each that is answered
return judged(messages, answers, error)   # when nothing more can be sent
"""

from collections.abc import Sequence
from typing import Any

from django_events.bridges.relays.targets import RelayMessage, TargetUnavailable

UNANSWERED = object()


class Unroutable(Exception):
    """The broker has nothing of the name that a function of the target says of an event: no queue, no topic.

    It counts as an attempt, as an error of the function does. So a queue that is made soon gets the event, and one that
    is never made holds up nothing behind it for ever.
    """


def judged(
    messages: Sequence[RelayMessage], answers: Sequence[Any], error: TargetUnavailable
) -> Sequence[Exception | None]:
    """What `send` returns, or else raises, when an error left messages unanswered.

    An error of one message comes first, if all in front of it are acknowledged: when that is settled, the others are
    sent again.
    """
    acknowledged = next((index for index, answer in enumerate(answers) if answer is not None), len(answers))
    if acknowledged < len(answers) and _is_of_message(answers[acknowledged]):
        behind = range(acknowledged, len(answers))
        end = next((index for index in behind if not _is_settled(answers[index])), len(answers))
        return answers[:end]
    ahead = [one.address for one, answer in zip(messages, answers, strict=True) if answer is None]
    raise TargetUnavailable(
        str(error), acknowledged=acknowledged, after=error.asked_for, ahead=ahead[acknowledged:]
    ) from None


def _is_of_message(answer: Any) -> bool:
    return isinstance(answer, Exception) and not isinstance(answer, TargetUnavailable)


def _is_settled(answer: Any) -> bool:
    return answer is None or _is_of_message(answer)
