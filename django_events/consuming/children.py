"""A process that a handler forks ends where the handler ends: it must not go on with its parent's connection.

with children_left_behind():        # in a forked child, the end of the block is the end of the process
    handler(event)
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

forks = 0  # how many forks lie between this process and the one that first imported this module


def _forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


@contextmanager
def children_left_behind() -> Iterator[None]:
    """End a process that the block forked as soon as it leaves the block."""
    before = forks
    try:
        yield
    finally:
        end_if_child(before)


def leaving_async_children_behind(
    handler: Callable[[Any], Coroutine[Any, Any, Any]],
) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """The same async handler, but a process that it forks ends where the handler ends."""

    async def invoke(argument: Any) -> Any:
        before = forks
        try:
            with _threads_left_behind(before):
                return await handler(argument)
        finally:
            end_if_child(before)

    return invoke


@contextmanager
def _threads_left_behind(before: int) -> Iterator[None]:
    """End a child that was forked in another thread, for example by a function under sync_to_async().

    That thread is the only one in the child. It would report its result to an event loop that no thread runs any more,
    and then wait for ever for the next function.
    """
    loop = asyncio.get_running_loop()
    report = loop.call_soon_threadsafe

    def report_or_end(callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
        if forks != before:
            done = [one for one in arguments if isinstance(one, Future) and one.done()]
            end_child(done[0].exception() if done else None)
        return report(callback, *arguments, **options)

    loop.call_soon_threadsafe = report_or_end  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del loop.call_soon_threadsafe  # the method of the class again


def end_if_child(before: int) -> None:
    """In a `finally`: end this process if it was forked since `forks` was `before`."""
    if forks != before:
        end_child(sys.exception())


def end_child(error: BaseException | None) -> NoReturn:
    """End this process as it would have ended by itself, but without touching what it shares with its parent."""
    code = 0
    with suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            code = 1
            sys.stderr.write("".join(traceback.format_exception(error)))
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code)
