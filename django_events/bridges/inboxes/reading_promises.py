"""What the promises of sources with places and those of queues have in common: a source, and messages that are put."""

from collections.abc import Sequence
from typing import Any

from django_events.bridges.inboxes.sources import SourceUnavailable
from django_events.bridges.promises import Promises
from django_events.declarations.declared_inbox import InboxSource


class ReadingPromises(Promises):
    """Promises of a source and its readers."""

    unavailable = SourceUnavailable
    calls: Sequence[str]  # that a reader needs

    def __init__(self, source: Any, *, put: Any, is_text: bool, **options: Any) -> None:
        super().__init__(**options)
        self._source = source
        self._put_bodies = put
        self._prefix = b"" if is_text else b"\xff\0"  # which is no text
        self._put = 0  # messages so far

    def expect_declared(self) -> Any:
        """What `check` and the workers ask of the source before anything is read; returns a reader, not open."""
        self.expect(
            isinstance(self._source, InboxSource), "it needs the methods problems, check_installed, reader and __str__"
        )
        self.expect(
            str(self._source) != object.__repr__(self._source),
            "it needs a __str__ that says what is read, for people",
        )
        problems = list(self._source.problems())
        self.expect(not problems, f"problems() says {problems}")
        self._source.check_installed()
        one, other = self._source.reader(), self._source.reader()
        self.expect(one is not other, "reader() returned the same reader twice: each worker needs one of its own")
        missing = [name for name in self.calls if not hasattr(one, name)]
        self.expect(not missing, f"its reader has no {', '.join(missing)}")
        self.close(other, "was never opened")
        return one

    def _add(self, messages: int) -> list[int]:
        """Put so many messages; returns their numbers."""
        numbers = list(range(self._put, self._put + messages))
        self._put += messages
        self._put_bodies([self._prefix + b"%d" % number for number in numbers])
        return numbers

    def _opened(self) -> Any:
        reader = self._source.reader()
        with self.only_unavailable("open()"):
            reader.open()
        return reader
