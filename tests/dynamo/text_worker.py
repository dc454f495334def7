"""A worker of NVIDIA Dynamo 1.6.1 that takes text."""

import asyncio

from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime


async def generate(request, context):
    is_chat = "messages" in request
    if request.get("prompt") == "fail":
        raise RuntimeError("broken engine")
    for word, reason in (("hello ", None), ("world", "stop")):
        said = {"delta": {"role": "assistant", "content": word}} if is_chat else {"text": word}
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        choice = {"index": 0, "finish_reason": reason, "logprobs": None}
        yield {"id": "c", "object": kind, "created": 1, "model": "bare", "choices": [choice | said]}


async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    kinds = ModelType.Chat | ModelType.Completions
    await register_model(ModelInput.Text, kinds, endpoint, "bare", worker_type=WorkerType.Aggregated, skip_model_assets=True)
    await endpoint.serve_endpoint(generate)


asyncio.run(main())
