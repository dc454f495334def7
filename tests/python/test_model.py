"""`register_model` behind a real frontend: answers, credit, cancellation, errors, the drain."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from conftest import MODEL, SOON, Frontend, soon
from dynamo.llm import Context, Endpoint, EngineShutdown, InvalidArgument, Overloaded, Unavailable, register_model

Generate = Callable[[dict[str, Any], Context], AsyncIterator[dict[str, Any]]]


@asynccontextmanager
async def serving(generate: Any, **options: Any) -> AsyncIterator[Endpoint]:
    _, endpoint = await register_model(model=MODEL, generator=generate, **{"model_name": "toy"} | options)
    yield endpoint
    await endpoint.shutdown(timeout=5.0)


async def asks(frontend: Frontend, body: dict[str, Any], model: str = "toy") -> tuple[int, dict[str, Any], dict[str, str]]:
    await asyncio.to_thread(frontend.serves, model)
    return await asyncio.to_thread(frontend.ask, "/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 3} | body)


def test_a_generator_answers(frontend: Frontend) -> None:
    seen: list[dict[str, Any]] = []

    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        seen.append(request)
        ids = request["token_ids"]
        yield {"token_ids": ids[:1]}
        yield {"token_ids": np.array(ids[1:3], np.int64), "log_probs": None}
        yield {"token_ids": [], "finish_reason": "length", "completion_usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}
        raise AssertionError("what comes after the end is not asked for")

    async def main() -> None:
        async with serving(generate):
            status, body, _ = await asks(frontend, {"temperature": 0.7, "seed": 3, "stop": ["never"]})
            assert status == 200, body
            choice = body["choices"][0]
            assert (choice["finish_reason"], body["usage"]["completion_tokens"]) == ("length", 3)
            assert "hello".startswith(choice["text"]) and choice["text"]

    asyncio.run(main())
    assert seen[0]["stop_conditions"]["max_tokens"] == 3 and seen[0]["model"] == "toy"
    assert (seen[0]["sampling_options"]["temperature"], seen[0]["sampling_options"]["seed"]) == (pytest.approx(0.7), 3)
    assert all(isinstance(token, int) for token in seen[0]["token_ids"])


def test_many_requests_at_once_and_long_answers_to_slow_readers(frontend: Frontend) -> None:
    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        assert context.id() and not context.is_stopped()
        # More than the buffers between here and the frontend hold.
        for step in range(request["stop_conditions"]["max_tokens"] - 1):
            if step % 100 == 0:
                await asyncio.sleep(0)
            yield {"token_ids": [7]}
        yield {"token_ids": [7], "finish_reason": "length"}

    async def main() -> None:
        async with serving(generate):
            answers = await asyncio.gather(*(asks(frontend, {"max_tokens": 1500}) for _ in range(8)))
            assert [(status, body["usage"]["completion_tokens"]) for status, body, _ in answers] == [(200, 1500)] * 8

    asyncio.run(main())


def test_a_client_that_leaves_cancels_the_generator(frontend: Frontend) -> None:
    told: list[str] = []

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        told.append("begun")
        try:
            while True:
                yield {"token_ids": [7]}
                await asyncio.sleep(0.01)
        finally:
            told.append(f"stopped {context.is_stopped()} {await context.async_killed_or_stopped()}")

    def leaves() -> None:
        address = urlsplit(frontend.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=SOON)
        body = json.dumps({"model": "toy", "prompt": "hello", "max_tokens": 1000, "stream": True, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        assert connection.getresponse().read(10)
        connection.close()

    async def main() -> None:
        async with serving(generate):
            await asyncio.to_thread(frontend.serves, "toy")
            await asyncio.to_thread(leaves)
            await asyncio.to_thread(soon, "the cancellation", lambda: len(told) == 2)

    asyncio.run(main())
    assert told == ["begun", "stopped True True"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InvalidArgument("no such grammar"), 400, "no such grammar"),
        (Overloaded("the queue is full"), (429, 503), ""),
        (Unavailable("not now"), (500, 502, 503), ""),
        (EngineShutdown("going down"), (500, 502, 503), ""),
        (RuntimeError("a bug"), (500, 502, 503), ""),
        (None, (500, 502, 503), ""),
        ("no dict", (500, 502, 503), ""),
        ({"token_ids": [-1]}, (500, 502, 503), ""),
        ({"token_ids": [1], "finish_reason": 3}, (500, 502, 503), ""),
    ],
)
def test_exceptions_become_typed_errors(
    frontend: Frontend, error: Any, status: int | tuple[int, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def generate(request: dict[str, Any]) -> AsyncIterator[Any]:
        if isinstance(error, BaseException):
            raise error
        if error is not None:
            yield error

    async def main() -> None:
        async with serving(generate):
            answered, body, _ = await asks(frontend, {})
            assert answered in (status if isinstance(status, tuple) else (status,)), body
            assert message in body["error"]["message"]

    with caplog.at_level(logging.CRITICAL, "dynamo.llm"):
        asyncio.run(main())


def test_a_drain_finishes_what_runs(frontend: Frontend) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go.wait()
        yield {"token_ids": [7], "finish_reason": "length"}

    async def main() -> None:
        async with serving(generate) as endpoint:
            asking = asyncio.ensure_future(asks(frontend, {}))
            await begun.wait()
            closing = asyncio.ensure_future(endpoint.shutdown(timeout=10.0))
            await asyncio.sleep(0.7)
            assert not closing.done()
            go.set()
            assert (await asking)[0] == 200
            await asyncio.wait_for(closing, SOON)

    asyncio.run(main())


def test_a_drain_cancels_what_outlasts_it(frontend: Frontend) -> None:
    begun, told = asyncio.Event(), []

    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        try:
            await asyncio.sleep(3600)
            yield {}
        finally:
            told.append("over")

    async def main() -> None:
        async with serving(generate) as endpoint:
            asking = asyncio.ensure_future(asks(frontend, {}))
            await begun.wait()
            began = time.monotonic()
            await endpoint.shutdown(timeout=1.0)
            assert time.monotonic() - began < 5
            assert (await asking)[0] != 200

    asyncio.run(main())
    assert told == ["over"]


def test_a_model_in_a_folder_has_its_name_and_a_bare_one_is_said_to_take_text(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"token_ids": [7], "finish_reason": "length"}

    async def main() -> None:
        async with serving(generate, model_name=None, component="one"):
            assert (await asks(frontend, {}, "tiny-llama"))[0] == 200
        component, endpoint = await register_model("bare", generate, component="two")
        assert (component.name, endpoint.path) == ("two", "dynamo/two/generate")
        assert endpoint.instance_id == component.instance_id
        await endpoint.shutdown()

    asyncio.run(main())
    assert "bare is no folder: registered for text input, and requests get no credit" in caplog.text


def test_a_bare_model_gets_text_and_its_texts_are_the_answer(frontend: Frontend) -> None:
    seen: list[dict[str, Any]] = []

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        seen.append(request)
        yield "hello "
        if request["prompt"] == "broken":
            raise InvalidArgument("not that")
        yield {"text": "world", "finish_reason": "stop", "completion_usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}

    async def main() -> None:
        _, endpoint = await register_model("bare", generate)
        status, body, headers = await asks(frontend, {"prompt": "say it"}, "bare")
        assert (status, body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (200, "hello world", "stop"), body
        assert (body["usage"]["total_tokens"], headers["x-dynamo-overlap-blocks"]) == (5, "0")
        chat = {"model": "bare", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
        status, body, _ = await asyncio.to_thread(frontend.ask, "/v1/chat/completions", chat)
        assert (status, body["choices"][0]["message"]) == (200, {"role": "assistant", "content": "hello world"}), body
        status, body, _ = await asks(frontend, {"prompt": "broken"}, "bare")
        assert (status, body["error"]["message"]) == (400, "not that")
        await endpoint.shutdown()

    asyncio.run(main())
    assert [request["prompt"] for request in seen] == ["say it", "system: be brief\nuser: hi\nassistant:", "broken"]


def test_a_folder_that_is_no_model_is_refused() -> None:
    async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield request

    with pytest.raises(ValueError, match="model: .* has no config.json, which routers need"):
        asyncio.run(register_model(MODEL.parent, generate))
