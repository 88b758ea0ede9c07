"""A time limit for a block: it ends what the block waits for, and nothing of others."""

from __future__ import annotations

import asyncio

import pytest

from aibs.timeouts import within


def test_what_takes_too_long_is_a_timeout_and_leaves_the_task_as_it_was() -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError), within(0.01):
            await asyncio.sleep(30)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0.02)

    asyncio.run(run())


def test_what_is_in_time_is_never_cancelled_later() -> None:
    async def run() -> None:
        with within(0.02):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    asyncio.run(run())


def test_a_cancellation_by_others_is_no_timeout() -> None:
    async def run() -> None:
        async def work() -> None:
            with within(30):
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_cancellation_that_comes_with_the_timeout_is_not_lost() -> None:
    async def run() -> None:
        async def work() -> None:
            with within(0.01):
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    me = asyncio.current_task()
                    assert me is not None
                    me.cancel()
                    raise

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_limit_within_another_is_the_one_that_is_told() -> None:
    async def run() -> None:
        with within(30):
            with pytest.raises(TimeoutError), within(0.01):
                await asyncio.sleep(30)
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError), within(0.01), within(30):
            await asyncio.sleep(30)

    asyncio.run(run())


def test_an_error_of_the_block_passes() -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="its own"), within(30):
            raise ValueError("its own")

    asyncio.run(run())
