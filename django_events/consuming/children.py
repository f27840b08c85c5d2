"""A child that a handler forked never comes back into its worker: it would go on with the parent's connection.

invoke = leaving_children_behind(handler)     # in a child, the end of the handler is the end of the process
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

forks = 0  # how often this process was forked off, counted from the first one that imported this


def _forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


def leaving_children_behind(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same handler, but for children that it forks: they end where it ends."""

    def invoke(argument: Any) -> Any:
        before = forks
        try:
            return handler(argument)
        finally:
            if forks != before:
                end_child(sys.exception())

    return invoke


def leaving_async_children_behind(
    handler: Callable[[Any], Coroutine[Any, Any, Any]],
) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """The same for an async one, which may run in a thread of its own: there is no other in a child."""

    async def invoke(argument: Any) -> Any:
        before = forks
        try:
            with _threads_left_behind(before):
                return await handler(argument)
        finally:
            if forks != before:
                end_child(sys.exception())

    return invoke


@contextmanager
def _threads_left_behind(before: int) -> Iterator[None]:
    """What the handler has done in another thread, as by sync_to_async, may fork too.

    In the child that thread is the only one. It would tell the loop that it is done, and wait for ever for what comes.
    """
    loop = asyncio.get_running_loop()
    tell = loop.call_soon_threadsafe

    def tell_or_end(callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
        if forks != before:
            done = [one for one in arguments if isinstance(one, Future) and one.done()]
            end_child(done[0].exception() if done else None)
        return tell(callback, *arguments, **options)

    loop.call_soon_threadsafe = tell_or_end  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        loop.call_soon_threadsafe = tell  # type: ignore[method-assign]


@contextmanager
def children_left_behind() -> Iterator[None]:
    """The same for a block: what a handler left to be called later may fork too."""
    before = forks
    try:
        yield
    finally:
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
