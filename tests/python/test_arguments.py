"""What callers may pass, and what they are told of what they may not."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import numpy as np
import pytest

from conftest import holds, index_of
from dynamo.llm import KvEventPublisher, KvEventSubscriber, KvIndexer, Runtime, register_model

GOOD: dict[str, Any] = {"token_ids": list(range(8)), "num_block_tokens": [4, 4], "block_hashes": [7, 8]}


@pytest.mark.parametrize(
    "numbers",
    [
        list,
        tuple,
        lambda numbers: range(numbers[0], numbers[-1] + 1),
        lambda numbers: np.array(numbers, np.int64),
        lambda numbers: np.array(numbers, np.int32),
        lambda numbers: np.array(numbers, np.uint32),
        lambda numbers: np.array(numbers, np.uint64),
        lambda numbers: np.array(numbers, np.int16),
        lambda numbers: np.repeat(np.array(numbers), 3)[::3],
        lambda numbers: np.array(numbers[::-1])[::-1],
        lambda numbers: array("q", numbers),
        lambda numbers: memoryview(array("I", numbers)),
        lambda numbers: bytearray(numbers),
        lambda numbers: [np.int64(number) for number in numbers],
    ],
)
def test_numbers_in_any_form_are_the_same_blocks(runtime: Runtime, numbers: Any) -> None:
    with_index = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
    sizes = [4, 4] if isinstance(numbers([1, 2]), range) else numbers([4, 4])
    with_index.publish_stored(numbers(list(range(8))), sizes, numbers([7, 8]))
    with_index.flush()
    assert with_index.find_matches(numbers(list(range(8)))) == 2
    with_index.publish_removed(numbers([8]))
    with_index.flush()
    assert (with_index.find_matches(list(range(8))), with_index.counters()["unknown_removals"]) == (1, 0)
    with_index.shutdown()


def test_hashes_are_64_bits_signed_or_not(runtime: Runtime) -> None:
    publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
    publisher.publish_stored(list(range(8)), [4, 4], [-1, -(2**63)])
    publisher.publish_stored(list(range(8, 12)), [4], np.array([9], np.uint64), parent_hash=2**63)
    publisher.publish_removed(np.array([2**64 - 1], np.uint64))
    publisher.flush()
    counters = publisher.counters()
    assert (publisher.find_matches(range(12)), counters["unknown_removals"], counters["orphans"]) == (0, 0, 0)
    publisher.shutdown()


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"token_ids": "12345678"}, TypeError, r"token_ids\[0\] is a str"),
        ({"token_ids": 5}, TypeError, "token_ids is a int"),
        ({"token_ids": None}, TypeError, "token_ids is a NoneType"),
        ({"token_ids": {1, 2}}, TypeError, "token_ids is a set"),
        ({"token_ids": [1.5] * 8}, TypeError, r"token_ids\[0\] is a float"),
        ({"token_ids": [0, 1, 2, 3, 4, 5, 6, -1]}, ValueError, r"token_ids\[7\] is -1: expected 0 to"),
        ({"token_ids": np.array([0, 1, 2, 3, 4, 5, 6, 2**32])}, ValueError, r"token_ids\[7\] is 4294967296"),
        ({"token_ids": np.zeros(8)}, TypeError, "token_ids holds items of format 'd'"),
        ({"token_ids": np.zeros(8, ">i4")}, TypeError, "token_ids holds items of format '>i'"),
        ({"token_ids": np.zeros((2, 4), int)}, ValueError, "token_ids has 2 dimensions"),
        ({"token_ids": list(range(7))}, ValueError, "token_ids has 7 entries where the blocks take 8"),
        ({"num_block_tokens": [4]}, ValueError, "num_block_tokens has 1 entries"),
        ({"num_block_tokens": [4, 5]}, ValueError, r"num_block_tokens\[1\] is 5, and kv_block_size is 4"),
        ({"block_hashes": [7, 7]}, ValueError, r"block_hashes\[0\] and block_hashes\[1\] are both 7"),
        ({"block_hashes": [7, 2**64]}, ValueError, r"block_hashes\[1\] is 18446744073709551616"),
        ({"parent_hash": 8}, ValueError, r"parent_hash 8 is also block_hashes\[1\]"),
        ({"parent_hash": "x"}, TypeError, "parent_hash is a str"),
        ({"block_mm_infos": [None]}, ValueError, "block_mm_infos has 1 entries"),
        ({"block_mm_infos": [None, 3]}, TypeError, r"block_mm_infos\[1\] is neither None nor a dict"),
        ({"block_mm_infos": [None, {"mm_objects": [{}]}]}, ValueError, r'block_mm_infos\[1\]\["mm_objects"\]\[0\] has no "mm_hash"'),
        ({"lora_name": 3}, TypeError, "lora_name"),
        ({"event_id": -1}, ValueError, "event_id is -1"),
        ({"event_id": "1"}, TypeError, "event_id is a str"),
        ({"lora_id": -1}, ValueError, "lora_id is -1"),
        ({"junk": 1}, TypeError, "junk"),
    ],
)
def test_a_wrong_argument_of_a_store_is_named_and_changes_nothing(
    runtime: Runtime, wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
    with pytest.raises(error, match=named):
        publisher.publish_stored(**(GOOD | wrong))
    publisher.flush()
    assert publisher.counters()["events"] == 0
    publisher.shutdown()


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"component": None}, TypeError, "component is a NoneType: expected the Component"),
        ({"kv_block_size": 0}, ValueError, "kv_block_size is 0"),
        ({"kv_block_size": "16"}, TypeError, "kv_block_size is a str"),
        ({"dp_rank": -1}, ValueError, "dp_rank is -1"),
        ({"enable_local_indexer": "yes"}, TypeError, "enable_local_indexer"),
        ({"zmq_endpoint": "5557"}, ValueError, "zmq_endpoint is \"5557\""),
        ({"zmq_topic": ""}, ValueError, "zmq_topic is given without zmq_endpoint"),
        ({"worker_id": 1.5}, TypeError, "worker_id is a float"),
    ],
)
def test_a_wrong_argument_of_a_publisher_is_named(runtime: Runtime, wrong: dict[str, Any], error: type[Exception], named: str) -> None:
    good: dict[str, Any] = {"component": runtime.component(), "kv_block_size": 4}
    with pytest.raises(error, match=named):
        KvEventPublisher(**(good | wrong))


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"event_plane": "kafka"}, ValueError, "event_plane=kafka: allowed are nats and zmq"),
        ({"discovery_backend": "mem"}, ValueError, "discovery_backend=mem: is within one process"),
        ({"tcp_rpc_port": 99_999}, ValueError, "tcp_rpc_port=99999"),
        ({"namespace": 3}, TypeError, "namespace is a int"),
        ({"plane": "zmq"}, TypeError, "plane is no argument"),
    ],
)
def test_a_wrong_plane_is_named(wrong: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        Runtime(**wrong)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_EVENT_PLANE", "kafka")
    with pytest.raises(ValueError, match="DYN_EVENT_PLANE=kafka: allowed are nats and zmq"):
        Runtime()


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"model": ""}, ValueError, "model is empty"),
        ({"model": 3}, TypeError, "int"),
        ({"generator": 3}, TypeError, "generator is a int"),
        ({"kv_block_size": 0}, ValueError, "kv_block_size is 0"),
        ({"component": "a/b"}, ValueError, "component is \"a/b\""),
        ({"worker_type": "half"}, ValueError, "worker_type is \"half\""),
        ({"runtime_data": []}, TypeError, "runtime_data is no dict"),
        ({"dp_size": "2"}, TypeError, "dp_size is a str"),
        ({"junk": 3}, TypeError, "junk is no argument"),
    ],
)
def test_a_wrong_argument_of_a_model_is_named(wrong: dict[str, Any], error: type[Exception], named: str) -> None:
    async def generate(request: dict[str, Any]) -> Any:
        yield request

    good: dict[str, Any] = {"model": "m", "generator": generate}
    with pytest.raises(error, match=named):
        asyncio.run(register_model(**(good | wrong)))


def test_wrong_arguments_of_consumers_are_named(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="kv_block_size is 0"):
        KvIndexer(runtime.component(), 0)
    with pytest.raises(TypeError, match="component is a str"):
        KvEventSubscriber("backend")  # type: ignore[arg-type]
    index = index_of(runtime, 4)
    with pytest.raises(TypeError, match=r"token_ids\[0\] is a str"):
        index.find_matches("abcd")
    holds(index, [1, 2, 3, 4], 0)
    index.shutdown()
