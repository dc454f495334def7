"""The calls that engine authors find documented, of now and of before: they work, and the older ones say what replaces them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, holds, index_of, run, soon
from dynamo.llm import Component, Endpoint, KvEventPublisher, KvIndexer, register_model

sys.path.insert(0, str(ROOT / "examples/python"))
from zmq_publisher import RawPublisher

TOKENS = list(range(48))


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"token_ids": [1], "finish_reason": "stop"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def seen(index: KvIndexer, tokens: list[int], blocks: int, **key: Any) -> None:
    await asyncio.to_thread(holds, index, tokens, blocks, **key)


async def connected(index: KvIndexer) -> None:
    await asyncio.to_thread(soon, "a connection", lambda: any(worker["connected"] for worker in index.workers()))


async def directly(make: Callable[[Component, Endpoint], KvEventPublisher], component: Component, endpoint: Endpoint, **older: Any) -> None:
    publisher = make(component, endpoint)
    index = KvIndexer(component, 16)
    await connected(index)
    identified: dict[str, Any] = {"event_id": 1} if "lora_id" in older else {}
    publisher.publish_stored(
        token_ids=TOKENS, num_block_tokens=[16] * 3, block_hashes=[1, 2, 2**64 - 3], parent_hash=None, **older, **identified
    )
    await seen(index, TOKENS, 3)
    publisher.publish_removed(block_hashes=[2**64 - 3], **identified)
    await seen(index, TOKENS, 2)
    publisher.publish_cleared()
    await seen(index, TOKENS, 0)
    index.shutdown()
    publisher.shutdown()


def test_direct_publishing_as_documented() -> None:
    def make(component: Component, endpoint: Endpoint) -> KvEventPublisher:
        return KvEventPublisher(component=component, kv_block_size=16, dp_rank=0)

    async def main() -> None:
        component, endpoint = await register_model(model="my-model", generator=generate)
        await directly(make, component, endpoint, lora_name=None)
        await endpoint.shutdown()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


async def relayed(publisher: KvEventPublisher, component: Component, raw: RawPublisher) -> None:
    index = KvIndexer(component, 16)
    await connected(index)

    def heard() -> bool:
        # Whoever subscribes later than a message is sent does not get it.
        raw.cleared()
        return publisher.counters()["events"] > 0

    await asyncio.to_thread(soon, "the relay", heard)
    raw.stored(TOKENS, [2**63 + 5, 12, 13])
    await seen(index, TOKENS, 3)
    raw.removed([13])
    await seen(index, TOKENS, 2)
    raw.stored(TOKENS, [21, 22, 23], lora_name="sql")
    await seen(index, TOKENS, 3, lora_name="sql")
    raw.cleared()
    await seen(index, TOKENS, 0)
    with pytest.raises(RuntimeError, match="relays the engine's own events"):
        publisher.publish_removed([1])
    index.shutdown()
    publisher.shutdown()
    raw.socket.close()


def test_relaying_an_engines_socket_as_documented() -> None:
    async def main() -> None:
        component, endpoint = await register_model(model="my-model", generator=generate)
        address = f"tcp://127.0.0.1:{free_port()}"
        raw = RawPublisher(address, 16, topic="")
        await relayed(KvEventPublisher(component=component, kv_block_size=16, zmq_endpoint=address, zmq_topic=""), component, raw)
        await endpoint.shutdown()

    asyncio.run(main())


def test_the_older_api_works_and_says_once_what_replaces_it() -> None:
    # Warnings are once in a process, so in one of its own.
    outcome = run(
        "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[0], run_name='older')",
        __file__,
        str(Path(__file__).parent),
        within=60.0,
        PYTHONWARNINGS="always::DeprecationWarning:older",
    )
    assert outcome.returncode == 0, outcome.stderr
    said = [line for line in outcome.stderr.splitlines() if "DeprecationWarning" in line]
    for form in ("register_llm", "connection_id", "worker_id=", "event_id=", "lora_id=", "ZmqKvEventPublisherConfig(", "ZmqKvEventPublisher("):
        assert sum(form in line.partition("DeprecationWarning:")[2].split(" is ")[0] for line in said) == 1, (form, said)
    assert len(said) == 7, said


async def older_main() -> None:
    from dynamo.llm import ZmqKvEventPublisher, ZmqKvEventPublisherConfig, register_llm

    for _ in range(2):
        component, endpoint = await register_llm(model="my-model", generator=generate)
        worker_id = endpoint.connection_id()

        def make(component: Component, endpoint: Endpoint, worker_id: int = worker_id) -> KvEventPublisher:
            return KvEventPublisher(component=component, worker_id=worker_id, kv_block_size=16, dp_rank=0, enable_local_indexer=False)

        await directly(make, component, endpoint, lora_id=0)
        address = f"tcp://127.0.0.1:{free_port()}"
        config = ZmqKvEventPublisherConfig(
            worker_id=endpoint.connection_id(), kv_block_size=16, zmq_endpoint=address, zmq_topic="", enable_local_indexer=False
        )
        raw = RawPublisher(address, 16, topic="")
        await relayed(ZmqKvEventPublisher(component=component, config=config), component, raw)
        await endpoint.shutdown()


def test_an_adapter_known_by_number_only_is_never_the_base_models(runtime: Any) -> None:
    publisher = KvEventPublisher(runtime.component(), 16, enable_local_indexer=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        publisher.publish_stored(TOKENS, [16] * 3, [1, 2, 3], lora_id=3)
    publisher.flush()
    assert (publisher.find_matches(TOKENS), publisher.counters()["events"]) == (0, 1)
    publisher.publish_stored(TOKENS, [16] * 3, [4, 5, 6], lora_name="sql", cache_salt="x")
    publisher.flush()
    assert publisher.find_matches(TOKENS, "sql", cache_salt="x") == 3
    assert publisher.find_matches(TOKENS, "sql") == publisher.find_matches(TOKENS) == 0
    publisher.shutdown()


if __name__ == "older":
    asyncio.run(older_main())
