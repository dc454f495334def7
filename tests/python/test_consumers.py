"""The other end: an index that heals, events as they come, and asking for what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from conftest import SOON, holds, index_of, soon
from dynamo.llm import KvEvent, KvEventPublisher, KvEventSubscriber, KvIndexer, Runtime

TOKENS = list(range(16))


async def heard(events: AsyncIterator[KvEvent], kind: str) -> KvEvent:
    async def until() -> KvEvent:
        while True:
            event = await events.__anext__()
            if event.kind == kind:
                return event

    return await asyncio.wait_for(until(), SOON)


def test_an_index_that_comes_late_has_everything_of_publishers_that_keep_it(runtime: Runtime) -> None:
    first = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
    first.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])
    first.flush()
    with another() as other:
        second = KvEventPublisher(other.component(), 4, dp_rank=1, enable_local_indexer=True)
        second.publish_stored(TOKENS[:8], [4] * 2, [1, 2])
        index = index_of(runtime, 4)
        wanted = {(runtime.instance_id, 0): 4, (other.instance_id, 1): 2}
        soon("both", lambda: index.find_matches(TOKENS) == wanted)
        assert index.blocks == 4
        soon("trust", lambda: [worker["trust"] for worker in index.workers()] == ["exact", "exact"])
        second.shutdown()
        holds(index, TOKENS, 4)
    first.publish_cleared()
    holds(index, TOKENS, 0)
    index.shutdown()
    first.shutdown()


@contextmanager
def another() -> Iterator[Runtime]:
    """A process of its own, as far as records tell."""
    other = Runtime()
    yield other
    other.shutdown()


def test_a_namespace_is_followed_as_a_whole_and_a_component_alone(runtime: Runtime) -> None:
    publishers = [KvEventPublisher(runtime.component(name), 4, enable_local_indexer=True) for name in ("one", "two")]
    publishers[0].publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])
    publishers[1].publish_stored(TOKENS[:4], [4], [1])
    of_one, of_two = KvIndexer(runtime.component("one"), 4), KvIndexer(runtime.component("two"), 4)
    holds(of_one, TOKENS, 4)
    holds(of_two, TOKENS, 1)
    for consumer in (of_one, of_two):
        consumer.shutdown()
    for publisher in publishers:
        publisher.shutdown()


def test_events_are_heard_in_order_and_what_was_missed_is_asked_for(runtime: Runtime) -> None:
    async def main() -> None:
        publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
        publisher.publish_stored(TOKENS[:8], [4] * 2, [1, 2])
        publisher.flush()
        subscriber = KvEventSubscriber(runtime.component())
        events = aiter(subscriber)
        connected = await heard(events, "connected")
        assert (connected.worker_id, connected.publisher_id) == (runtime.instance_id, publisher.publisher_id)
        publisher.publish_stored(TOKENS[8:], [4] * 2, [3, 2**64 - 4], parent_hash=2)
        publisher.publish_removed([-4])
        publisher.publish_cleared()
        stored = await heard(events, "stored")
        assert (stored.event_id, stored.parent_hash, stored.block_hashes, stored.tier) == (2, 2, [3, 2**64 - 4], "device")
        removed = await heard(events, "removed")
        assert (removed.event_id, removed.block_hashes) == (3, [2**64 - 4])
        assert (await heard(events, "cleared")).event_id == 4
        # Before the connection there was one more.
        missed = await subscriber.recover(runtime.instance_id, 0, 1)
        assert not missed.is_everything and missed.last_event_id == 4
        assert [(event.kind, event.event_id) for event in missed.events] == [("stored", 1), ("stored", 2), ("removed", 3), ("cleared", 4)]
        assert missed.events[1].tokens_hashes == stored.tokens_hashes
        everything = await subscriber.recover(runtime.instance_id)
        assert (everything.is_everything, everything.events, everything.last_event_id) == (True, [], 4)
        with pytest.raises(RuntimeError, match="nobody answers for what was missed of worker 5 rank 0"):
            await subscriber.recover(5)
        publisher.shutdown()
        assert (await heard(events, "gone")).publisher_id == publisher.publisher_id

    asyncio.run(main())


def test_waiting_for_an_event_can_be_given_up_and_loses_none(runtime: Runtime) -> None:
    async def main() -> None:
        publisher = KvEventPublisher(runtime.component(), 4)
        events = aiter(KvEventSubscriber(runtime.component()))
        await heard(events, "connected")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(events.__anext__(), 0.05)
        publisher.publish_stored(TOKENS[:4], [4], [1])
        assert (await heard(events, "stored")).event_id == 1
        publisher.shutdown()

    asyncio.run(main())
