"""Blocks of event_context() and suppress() reach triggers wherever their statements run, and leave others' wrappers."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_events import event_context

pytestmark = pytest.mark.usefixtures("transactional_db")


def told() -> str:
    """The context that a trigger of this thread's connection would see."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("WITH one AS (SELECT 1) SELECT current_setting('django_events.context', true)")
        [[context]] = cursor.fetchall()
        return context


def test_a_block_of_async_code_holds_on_connections_that_other_threads_opened_before():
    async def ask():
        before = await sync_to_async(told)()
        with event_context(user=7):
            within = await sync_to_async(told)()
        after = await sync_to_async(told)()
        await sync_to_async(connections.close_all)()
        return before or "", within, after or ""

    assert asyncio.run(ask()) == ("", '{"user":7}', "")


def test_tasks_whose_blocks_end_in_another_order_keep_their_own():
    async def block(user, entered, other_ends):
        with event_context(user=user):
            entered.set()
            await other_ends.wait()
            return await sync_to_async(told)()

    async def ask():
        entered, first_ends, second_ends = asyncio.Event(), asyncio.Event(), asyncio.Event()
        await sync_to_async(told)()
        first = asyncio.create_task(block(1, entered, first_ends))
        await entered.wait()
        entered.clear()
        second = asyncio.create_task(block(2, entered, second_ends))
        await entered.wait()
        first_ends.set()
        answers = [await first]
        second_ends.set()
        answers.append(await second)
        await sync_to_async(connections.close_all)()
        return answers

    assert asyncio.run(ask()) == ['{"user":1}', '{"user":2}']


def test_a_block_that_ends_late_takes_no_wrapper_of_others_away():
    def block():
        with event_context(user=1):
            yield

    def other(execute, *statement):
        seen.append(statement[0])
        return execute(*statement)

    seen = []
    told()
    generator = block()
    next(generator)
    with connection.execute_wrapper(other):
        next(generator, None)
        told()
    assert len(seen) == 1, "it was there until its own block ended"
    told()
    assert len(seen) == 1
