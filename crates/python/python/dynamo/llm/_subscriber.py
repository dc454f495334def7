"""`KvEventSubscriber`: what workers tell of their caches, event by event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from dynamo.llm._native import Component, Runtime, Subscriber


@dataclass(frozen=True)
class KvEvent:
    """One thing that is heard of one worker's rank. Hashes are unsigned 64-bit numbers.

    `kind` is "stored" (`block_hashes` and `tokens_hashes`, one of each for every block in the order of the prompt, after `parent_hash`;
    `None` begins a prompt), "removed" (`block_hashes`) or "cleared" (every block of every tier); or, of the stream itself, "connected"
    (what was published before may have been missed), "missed" (something did not arrive) or "gone" (the publisher, and what it said).
    `event_id` counts by one for each event of a publisher; after a jump, "connected" or "missed" call `KvEventSubscriber.recover`.
    """

    kind: str
    worker_id: int
    dp_rank: int
    publisher_id: int | None = None
    event_id: int | None = None
    tier: str | None = None
    parent_hash: int | None = None
    block_hashes: list[int] = field(default_factory=list)
    tokens_hashes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Recovery:
    """What a publisher answered: `events`, up to `last_event_id`. Where `is_everything`, they rebuild what the rank holds from nothing."""

    is_everything: bool
    events: list[KvEvent]
    last_event_id: int


class KvEventSubscriber:
    """Hears every publisher of KV events of a component (or, given a `Runtime`, of its namespace), and those that come.

    An asynchronous iterator of `KvEvent`s, for one loop. Dropping it ends it. Whoever reads too slowly gets "missed" events, and never
    holds up a publisher.
    """

    def __init__(self, component: Component | Runtime) -> None:
        self._native = Subscriber(component)
        self._next: asyncio.Future[dict[str, Any] | None] | None = None

    def __aiter__(self) -> AsyncIterator[KvEvent]:
        return self

    async def __anext__(self) -> KvEvent:
        # Whoever gives up waiting leaves the question open: its answer is the next one's.
        if self._next is None:
            self._next = self._native.next()
        heard = await asyncio.shield(self._next)
        self._next = None
        if heard is None:
            raise StopAsyncIteration
        return KvEvent(**heard)

    async def recover(self, worker_id: int, dp_rank: int = 0, start_event_id: int | None = None) -> Recovery:
        """Asks a rank's publisher for its events from `start_event_id` on; without it, or where that is no longer kept, for everything.

        Raises `RuntimeError` where nobody answers: a publisher without `enable_local_indexer=True` keeps nothing.
        """
        is_everything, events, last_event_id = await self._native.recover(worker_id, dp_rank, start_event_id)
        return Recovery(is_everything, [KvEvent(**event) for event in events], last_event_id)
