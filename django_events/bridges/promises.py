"""What a bridge or a source of a site's own has to keep, checked one promise after the other.

    class TargetPromises(Promises):
        @Promise
        def order(self): self.expect(sent == there, "…")

    TargetPromises(…).check()          # {"order": "kept", "outage": "not checked: …"}

A promise that is broken doesn't keep the others from being checked. All that are broken are said in one AssertionError.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

KEPT = "kept"
SOON = 5.0  # seconds, for what waits for nothing; generous, because machines of tests are slow


class BrokenPromise(Exception):
    """What a bridge did instead of what it promises."""


class NotChecked(Exception):
    """Why a promise can't be checked here."""


class Promise:
    """Marks a method that is to be checked. Its name is that of the promise."""

    def __init__(self, method: Callable[[Any], None]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, promises: Any, kind: type) -> Callable[[], None]:
        return partial(self._method, promises)


class Promises:
    """Checks the methods that are promises, in the order in which they stand there."""

    of = ""  # what they are promises of, and where that is written
    unavailable: type[Exception]  # the one error that says that the broker is away

    def __init__(self, *, stop: Any, start: Any, secrets: Sequence[str], seconds: float) -> None:
        self._stop = stop
        self._start = start
        self._secrets = secrets
        self.seconds = seconds

    def check(self, subject: object) -> dict[str, str]:
        """What became of each promise; AssertionError if one is broken."""
        found, broken = {}, {}
        for name in [name for name, value in vars(type(self)).items() if isinstance(value, Promise)]:
            try:
                getattr(self, name)()
                found[name] = KEPT
            except NotChecked as error:
                found[name] = f"not checked: {error}"
            except BrokenPromise as error:
                broken[name] = str(error)
            except Exception as error:  # of the bridge, where no error may be
                broken[name] = f"it raised {self.said(error)}, {_place_of(error)}."
        if broken:
            lines = "\n".join(f"  {name}: {said}" for name, said in broken.items())
            count = f"{len(broken)} of {len(found) + len(broken)}"
            raise AssertionError(f"{type(subject).__name__} breaks {count} promises of {self.of}:\n{lines}")
        return found

    def expect(self, is_kept: Any, otherwise: str) -> None:
        if not is_kept:
            raise BrokenPromise(otherwise)

    def needs(self, hook: Any, name: str) -> None:
        """Leave a promise out that can't be checked without this."""
        if hook is None:
            raise NotChecked(f"{name} isn't given")

    def said(self, error: BaseException) -> str:
        """What an error says; BrokenPromise if that has a secret in it."""
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets:
            self.expect(secret not in text, f"the text of its {type(error).__name__} has a secret in it")
        return text

    @contextmanager
    def only_unavailable(self, what: str, *others: type[Exception]) -> Iterator[None]:
        """What raises in here may raise one error, and perhaps some others."""
        try:
            yield
        except (self.unavailable, *others) as error:
            self.said(error)
            raise
        except (BrokenPromise, NotChecked):
            raise
        except Exception as error:
            raise BrokenPromise(
                f"{what} raised {self.said(error)}, {_place_of(error)}. Expected {self.unavailable.__name__} for all "
                "that is no message's own fault."
            ) from error

    def must_be_unavailable(self, what: str, ask: Callable[[], Any]) -> Exception:
        """The error that says that the broker is away."""
        began = time.monotonic()
        try:
            with self.only_unavailable(what):
                ask()
        except self.unavailable as error:
            took = time.monotonic() - began
            self.expect(took <= self.seconds, f"{what} took {took:.1f} s to find out that the broker is away")
            return error
        raise BrokenPromise(f"{what} raised nothing while the broker was stopped")

    def close(self, bridge: Any, state: str) -> None:
        began = time.monotonic()
        try:
            bridge.close()
        except Exception as error:
            raise BrokenPromise(f"close() of one that {state} raised {self.said(error)}, {_place_of(error)}") from error
        took = time.monotonic() - began
        self.expect(took < SOON, f"close() of one that {state} took {took:.1f} s, and has to wait for nothing")

    def check_close(self, make: Callable[[], Any]) -> None:
        """Closed in any state, and more than once."""
        never = make()
        self.close(never, "was never opened")
        used = make()
        used.open()
        self.close(used, "is open")
        self.close(used, "was closed before")

    def until_it_is_back(self, make: Callable[[], Any]) -> Any:
        """One that is open again after the broker was started."""
        deadline = time.monotonic() + self.seconds
        while True:
            bridge = make()
            try:
                with self.only_unavailable("open()"):
                    bridge.open()
                return bridge
            except self.unavailable as error:
                self.close(bridge, "could not be opened")
                self.expect(
                    time.monotonic() < deadline,
                    f"{self.seconds:g} s after the broker was started, open() says {self.said(error)}",
                )
                time.sleep(0.1)


def in_a_thread(work: Callable[[], None]) -> None:
    """Run it in another thread than the main one, as workers do, and raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _place_of(error: BaseException) -> str:
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(raised.filename).name}:{raised.lineno}"
