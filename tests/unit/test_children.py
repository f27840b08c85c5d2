"""What is left of a handler's block in its event loop."""

import asyncio

from django_events.consuming.children import leaving_async_children_behind


def test_an_event_loop_has_its_own_method_back_after_an_async_handler():
    async def handler(event):
        assert "call_soon_threadsafe" in vars(asyncio.get_running_loop())

    async def main():
        await leaving_async_children_behind(handler)(1)
        return "call_soon_threadsafe" in vars(asyncio.get_running_loop())

    assert not asyncio.run(main())
