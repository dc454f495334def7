"""An engine that publishes raw KV events itself, in vLLM's format and in pure Python: relay.py takes them from there.

python zmq_publisher.py tcp://127.0.0.1:5557 16     # where to publish, tokens per block; needs pyzmq and msgpack
"""

from __future__ import annotations

import sys
import time

import msgpack  # type: ignore[import-untyped]
import zmq


class RawPublisher:
    """A PUB socket. Each message is a topic, a number of 8 bytes, and a batch: the time, its events, and the data-parallel rank."""

    def __init__(self, endpoint: str, block_size: int, topic: str = "kv") -> None:
        self.block_size, self.topic, self.number = block_size, topic.encode(), 0
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self.socket.bind(endpoint)

    def stored(self, tokens: list[int], hashes: list[int], parent: int | None = None, lora_name: str | None = None) -> None:
        event = {"type": "BlockStored", "block_hashes": [signed(name) for name in hashes], "parent_block_hash": signed(parent)}
        self.send(event | {"token_ids": tokens, "block_size": self.block_size, "lora_name": lora_name})

    def removed(self, hashes: list[int]) -> None:
        self.send({"type": "BlockRemoved", "block_hashes": [signed(name) for name in hashes]})

    def cleared(self) -> None:
        self.send({"type": "AllBlocksCleared"})

    def send(self, event: dict[str, object]) -> None:
        self.socket.send_multipart([self.topic, self.number.to_bytes(8, "big"), msgpack.packb([time.time(), [event], 0])])
        self.number += 1


def signed(name: int | None) -> int | None:
    """64 bits as a signed number."""
    return name - 2**64 if name is not None and name >= 2**63 else name


if __name__ == "__main__":
    endpoint, block_size = sys.argv[1], int(sys.argv[2])
    publisher = RawPublisher(endpoint, block_size)
    tokens = list(range(4 * block_size))
    for turn in range(10_000):
        # A prompt is stored, loses its last block, and is stored anew, as in a cache under pressure.
        publisher.stored(tokens, [2**63 + 1, 2, 3, 4])
        time.sleep(0.1)
        publisher.removed([4])
        publisher.stored(tokens[3 * block_size :], [4], parent=3)
        time.sleep(0.1)
        publisher.cleared() if turn % 2 else publisher.removed([2**63 + 1, 2, 3, 4])
        time.sleep(0.1)
