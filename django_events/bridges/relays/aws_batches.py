"""A batch that goes to SQS or SNS in requests of up to ten messages, several of which are under way side by side.

    batch = AwsBatch(messages, entries)
    while together := batch.take():        # the messages of a request that may go now
        ...
    batch.give_back(together)              # it is over: what has no answer by then waits again

A request has a message group once, because one of its messages may fail alone, and nothing later of its group may be
there before it. For the same reason, what is behind a message that is under way waits for its answer, and is not sent
if that says that the queue isn't there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django_events.bridges.relays.answers import UNANSWERED, Unroutable
from django_events.bridges.relays.targets import RelayMessage

MOST_ENTRIES = 10  # of a request
MOST_BYTES = 2**18  # of a request with several messages: what SNS and older queues take
AT_ONCE = 10  # requests, where the client doesn't say how many connections it has
MORE_AFTER = 100  # answers, one request more goes at once, where AWS wanted less


class AwsBatch:
    """Which messages wait, which are under way, and what AWS says of those that are neither."""

    def __init__(self, messages: Sequence[RelayMessage], entries: Sequence[Mapping[str, Any] | Exception]) -> None:
        self.messages = messages
        self.answers: list[Any] = [one if isinstance(one, Exception) else UNANSWERED for one in entries]
        self.alone: set[int] = set()  # a request with several of them was refused as a whole
        self._entries: Sequence[Any] = entries
        self._waiting = [index for index, answer in enumerate(self.answers) if answer is UNANSWERED]
        self._under_way: set[tuple[str, str]] = set()  # groups

    def take(self) -> list[int]:
        """The messages of the next request: of one queue, the oldest first. None if all wait for those under way."""
        together: list[int] = []
        size, behind = 0, set(self._under_way)
        for index in self._waiting:
            message, group = self.messages[index], self._group(index)
            if group in behind or (together and message.route.to != self.messages[together[0]].route.to):
                continue
            if group is not None:
                behind.add(group)
            if together and (index in self.alone or size + message.size > MOST_BYTES):
                continue
            together.append(index)
            size += message.size
            if len(together) == MOST_ENTRIES or index in self.alone:
                break
        taken = set(together)
        self._waiting = [index for index in self._waiting if index not in taken]
        self._under_way |= self._groups(together)
        return together

    def give_back(self, together: Sequence[int]) -> None:
        """A request with these is over."""
        self._under_way -= self._groups(together)
        unanswered = [index for index in together if self.answers[index] is UNANSWERED]
        self._waiting = sorted([*self._waiting, *unanswered])
        for index in together:
            if isinstance(self.answers[index], Unroutable):
                self._leave_out_behind(index)

    def _leave_out_behind(self, unroutable: int) -> None:
        """Nothing of its group may be there before a message that is tried again: all of that gets its answer."""
        if (group := self._group(unroutable)) is not None:
            behind = {index for index in self._waiting if self._group(index) == group}
            self._waiting = [index for index in self._waiting if index not in behind]
            for index in behind:
                self.answers[index] = self.answers[unroutable]

    def request(self, together: Sequence[int]) -> tuple[str, list[Mapping[str, Any]]]:
        """Where these go, and what AWS is sent of them."""
        return self.messages[together[0]].route.to, [self._entries[index] for index in together]

    def _groups(self, together: Sequence[int]) -> set[tuple[str, str]]:
        return {group for index in together if (group := self._group(index)) is not None}

    def _group(self, index: int) -> tuple[str, str] | None:
        """The message group, which is one of a queue; None where there is no order."""
        group = self._entries[index].get("MessageGroupId")
        return None if group is None else (self.messages[index].route.to, group)


class RequestPace:
    """How many requests go at once: half as many whenever AWS wants less, and one more after each hundred answers."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self.most = self.at_once = most
        self._answers = 0

    def slow_down(self) -> None:
        self.at_once, self._answers = max(self.at_once // 2, 1), 0

    def note_answer(self) -> None:
        self._answers += 1
        if self._answers >= MORE_AFTER:
            self.at_once, self._answers = min(self.at_once + 1, self.most), 0
