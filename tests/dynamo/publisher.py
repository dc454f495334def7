"""A worker of somebody else's: real `dynamo.llm.KvEventPublisher` objects, told on standard input what to publish.

One JSON object a line: {"rank": R, "stored": {"token_ids", "block_hashes", "parent_hash", "lora_name"}} or {"rank": R, "removed": [..]}.
Each line is answered with "ok". The first line it writes is the worker's instance id. It ends with its input.
"""

import asyncio
import json
import sys

import uvloop
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime

BLOCK_SIZE = 16


async def generate(request):
    """Never asked: only what it would hold is of interest."""
    yield {"token_ids": [], "finish_reason": "stop"}


async def main(discovery, event_plane, ranks, model):
    runtime = DistributedRuntime(asyncio.get_running_loop(), discovery, "tcp", event_plane=event_plane)
    endpoint = runtime.endpoint("real.publisher.generate")
    config = ModelRuntimeConfig()
    config.data_parallel_size = ranks
    await register_model(
        ModelInput.Tokens,
        ModelType.Completions,
        endpoint,
        model,
        "published",
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK_SIZE,
        runtime_config=config,
    )
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    publishers = [
        KvEventPublisher(endpoint, kv_block_size=BLOCK_SIZE, dp_rank=rank, enable_local_indexer=True) for rank in range(ranks)
    ]
    print(endpoint.connection_id(), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        told = json.loads(line)
        publisher = publishers[told["rank"]]
        if stored := told.get("stored"):
            sizes = [BLOCK_SIZE] * len(stored["block_hashes"])
            publisher.publish_stored(num_block_tokens=sizes, **stored)
        else:
            publisher.publish_removed(told["removed"])
        print("ok", flush=True)
    runtime.shutdown()
    await serving


uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
