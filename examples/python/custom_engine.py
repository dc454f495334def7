"""A custom engine with real KV events: python custom_engine.py MODEL_FOLDER, then dynamo-frontend --router-mode kv."""

import asyncio
import signal
import sys

from dynamo.llm import InvalidArgument, KvEventPublisher, register_model

BLOCK_SIZE, CAPACITY = 16, 1024  # tokens, blocks


class BlockManager:
    """Keeps the blocks of the latest prompts; a block's hash covers all tokens up to its end."""

    def __init__(self, publisher: KvEventPublisher) -> None:
        self.publisher, self.blocks = publisher, dict[int, int]()

    def allocate(self, tokens: list[int]) -> int:
        """Stores a prompt's full blocks. Gives how many of its tokens were there already."""
        full = len(tokens) // BLOCK_SIZE
        hashes = [hash(tuple(tokens[: end * BLOCK_SIZE])) for end in range(1, full + 1)]
        cached = next((at for at, name in enumerate(hashes) if name not in self.blocks), full)
        for name in hashes:
            self.blocks[name] = self.blocks.pop(name, name)  # the latest is last
        if new := hashes[cached:]:
            self.publisher.publish_stored(
                token_ids=tokens[cached * BLOCK_SIZE : full * BLOCK_SIZE],
                num_block_tokens=[BLOCK_SIZE] * len(new), block_hashes=new,
                parent_hash=hashes[cached - 1] if cached else None,
            )
        if (excess := len(self.blocks) - CAPACITY) > 0:
            self.publisher.publish_removed(block_hashes=[self.blocks.pop(next(iter(self.blocks))) for _ in range(excess)])
        return cached * BLOCK_SIZE


async def main(folder: str) -> None:
    async def generate(request, context):
        tokens, limit = request["token_ids"], request["stop_conditions"].get("max_tokens") or 16
        if request["sampling_options"].get("guided_decoding"):
            raise InvalidArgument("this engine cannot follow a grammar")
        cached = manager.allocate(tokens)
        details = {"cached_tokens": min(cached, len(tokens) - 1)}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": limit, "total_tokens": len(tokens) + limit, "prompt_tokens_details": details}
        for step in range(limit):
            await asyncio.sleep(0.001)  # the model
            yield {"token_ids": [tokens[step % len(tokens)]]}
        yield {"token_ids": [], "finish_reason": "length", "completion_usage": usage}

    component, endpoint = await register_model(model=folder, generator=generate, model_name="toy", kv_block_size=BLOCK_SIZE)
    manager = BlockManager(KvEventPublisher(component=component, kv_block_size=BLOCK_SIZE, enable_local_indexer=True))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print("serving", endpoint, flush=True)
    await stop.wait()
    await endpoint.shutdown()  # finishes what runs
    manager.publisher.shutdown()


asyncio.run(main(sys.argv[1]))
