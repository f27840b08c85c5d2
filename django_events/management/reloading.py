"""A worker that starts again when its code changes, for development.

There are two processes, as with `runserver`: one watches over the other, which works in a thread and is
replaced when a file changes. Neither is ended with events in hand: what isn't finished in a few seconds is
handed back, so that the next process has it at once and doesn't wait for a lease to end.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

import django
from django.apps import apps
from django.utils import autoreload

from django_events.exceptions import NotReady
from django_events.workers.loop import Exit
from django_events.workers.stopping import Stop, stop_on_signals
from django_events.workers.wakeup_flag import WakeupFlag

FINISHES = 5.0  # seconds for what is in hand, before it is handed back
ENDS = FINISHES + 5.0  # seconds for the process, before it is killed
LOOKS_AGAIN = 1.0
CHANGED = 3  # what Django's reloader exits with

STARTED_AT = "DJANGO_EVENTS_STARTED_AT"

Say = Callable[[str], None]
AnyReloader = TypeVar("AnyReloader", bound=autoreload.BaseReloader)
INSTALLED = Path(django.__file__).parents[1]  # what is installed beside Django is not changed while a site is developed


def is_worker() -> bool:
    """Whether this is the process that works, and not the one that watches over it."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def work_until_changed(work: Callable[[Stop], None], *, hand_back: Callable[[], None], say: Say) -> None:
    """Run `work` in a thread until a file changes, a signal comes, or it fails: then its error is raised.

    Ends the process otherwise, with the exit code for the one that watches over it.
    """
    stop, watching, ended = Stop(), threading.Event(), threading.Event()
    errors: list[BaseException] = []
    main = threading.main_thread()

    def target() -> None:
        try:
            _when_ready(work, stop, say)
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()
            if watching.is_set() and main.ident is not None:
                signal.pthread_kill(main.ident, signal.SIGTERM)

    code: str | int | None = Exit.DONE
    try:
        _end_on_signals()
        watching.set()
        autoreload.start_django(_watching_apps(Reloader()), target)
    except SystemExit as ending:
        code = ending.code
        if code == CHANGED:
            say("The code changed. Finishing what is in hand, to start again.")
    finally:
        watching.clear()
        stop.request()
        if not _wait(ended):
            hand_back()
            _leave_at_once(code)
    if errors and code != CHANGED:
        raise errors[0]
    sys.exit(code)


class Reloader(autoreload.StatReloader):
    """Also notices what changed between the start of the process and its own first look, and files that are new."""

    def __init__(self) -> None:
        super().__init__()
        self._started_at = float(os.environ.get(STARTED_AT, "inf"))
        self._seen: set[Path] = set()

    def snapshot_files(self) -> Iterator[tuple[Path, float]]:
        for file, changed_at in super().snapshot_files():
            # One from the future would be newer than every process.
            if file not in self._seen and self._started_at <= changed_at <= time.time():
                self.notify_file_changed(file)
            self._seen.add(file)
            yield file, changed_at


def _wait(ended: threading.Event) -> bool:
    try:
        return ended.wait(FINISHES)
    except KeyboardInterrupt:
        return False


def _leave_at_once(code: str | int | None) -> None:
    """End the process although a handler in some thread doesn't come back."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else Exit.FAILED)


def _when_ready(work: Callable[[Stop], None], stop: Stop, say: Say) -> None:
    """A consumer that was declared just now is waited for until `migrate` has run."""
    said = ""
    while not stop.requested:
        try:
            work(stop)
            return
        except NotReady as error:
            if str(error) != said:
                said = str(error)
                say(f"{said.removesuffix('.')}. Waiting for it.")
            stop.wait(LOOKS_AGAIN)


def _end_on_signals() -> None:
    """The first ends the reloader's loop, in the main thread. A Ctrl-C after it interrupts whatever goes on then."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches this process twice: from the terminal, and as a SIGTERM from the one that watches over it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(Exit.DONE)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, on_signal)


def watch_over_worker(say: Say) -> int:
    """Start this command again as the process that works, whenever its code changed; returns its exit code."""
    with stop_on_signals() as stop:
        again = False
        while True:
            seen = _files()
            environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true", STARTED_AT: str(time.time())}
            worker = subprocess.Popen(autoreload.get_child_arguments(), env=environment, close_fds=False)  # noqa: S603
            code = _end_of(worker, stop)
            if stop.requested:
                # One that was just starting had no time to learn how to stop.
                return Exit.DONE if code in (Exit.DONE, CHANGED, -signal.SIGTERM, -signal.SIGINT) else _positive(code)
            if code == Exit.FAILED and again:
                say("It ended with an error. Waiting for the next change of the code.")
                while _files() == seen and not stop.requested:
                    stop.wait(LOOKS_AGAIN)
                if stop.requested:
                    return Exit.DONE
            elif code != CHANGED:
                return _positive(code)
            again = True


def _positive(code: int) -> int:
    """A signal that ended the other process is a failure of this one."""
    return code if code >= 0 else Exit.FAILED


def _end_of(worker: "subprocess.Popen[bytes]", stop: Stop) -> int:
    """Wait for the end of the process, and bring it about when told to stop."""
    ended = WakeupFlag()

    def wait() -> None:
        worker.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        stop.wait(None, ended.fileno())
        if stop.requested:
            worker.terminate()
        return worker.wait(ENDS if stop.requested else None)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        worker.kill()
        return Exit.FAILED
    finally:
        ended.close()


def _files() -> dict[Path, float]:
    """The code that is watched, and when each file was changed."""
    return dict(_watching_apps(autoreload.StatReloader()).snapshot_files())


def _watching_apps(reloader: AnyReloader) -> AnyReloader:
    """Watch what isn't imported too: a module with a mistake never was."""
    for app in apps.get_app_configs():
        if not Path(app.path).is_relative_to(INSTALLED):
            reloader.watch_dir(app.path, "**/*.py")
    return reloader
