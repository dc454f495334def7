"""`register_model`: serves an async generator to the frontends of the fleet."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Union

from dynamo.llm import _native, _text
from dynamo.llm._native import Component, Context, Endpoint, Sink

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dynamo.llm._native import Planes

Request = dict[str, Any]
Output = Union[dict[str, Any], str]
Generator = Union[Callable[[Request], AsyncIterator[Any]], Callable[[Request, Context], AsyncIterator[Any]]]

_log = logging.getLogger("dynamo.llm")


class _Failure(Exception):
    """An error that a router knows what to do about."""

    kind = "internal"


class InvalidArgument(_Failure):
    """The request is wrong: its client is told the message, and no other worker is asked."""

    kind = "invalid_argument"


class Overloaded(_Failure):
    """The engine has too much to do: another worker is asked."""

    kind = "overloaded"


class Unavailable(_Failure):
    """The engine cannot do it now: another worker is asked."""

    kind = "unavailable"


class EngineShutdown(_Failure):
    """The engine goes down: another worker is asked to go on."""

    kind = "shutdown"


async def register_model(
    model: str | os.PathLike[str],
    generator: Generator,
    *,
    model_name: str | None = None,
    component: str = "backend",
    endpoint: str = "generate",
    kv_block_size: int = 16,
    context_length: int | None = None,
    worker_type: str = "aggregated",
    migration_limit: int = 0,
    total_kv_blocks: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    dp_start_rank: int = 0,
    dp_size: int = 1,
    enable_local_indexer: bool = False,
    publishes_kv_events: bool = True,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    bootstrap: tuple[str, int] | None = None,
    runtime_data: dict[str, Any] | None = None,
    **planes: Unpack[Planes],
) -> tuple[Component, Endpoint]:
    """Serves a model to every frontend of the fleet, until `await endpoint.shutdown()` or the end of the process.

    `generator(request)` or `generator(request, context)` gives the answer to one request as an async generator of dicts. It runs on the
    loop that called this, and is cancelled at its `await` when the asker stops or leaves.

    A request has `token_ids` (the prompt, as rendered and tokenised by the frontend), `stop_conditions` (`max_tokens`, `min_tokens`,
    `stop_token_ids`, `ignore_eos`, ...), `sampling_options` (`temperature`, `top_p`, `seed`, ...), `output_options`, `eos_token_ids` and
    `routing` (`dp_rank`, `lora_name`, ...). Each dict it yields has `token_ids` (what is new; a list, a numpy array or another buffer) and
    may have `log_probs`, `top_logprobs`, `text`, `index`, `completion_usage`, `disaggregated_params`; the last one has `finish_reason`:
    "eos", "stop", "length", "content_filter", "cancelled" or "error: ...".

    `model` is a folder with `config.json` and `tokenizer.json` that the frontends can read, and its name is what clients ask for unless
    `model_name` is given. A bare name registers a model that takes text: its requests are OpenAI's bodies as clients sent them, with `prompt`
    (of a chat: its messages one below the other), and get no credit for what the cache holds. There the generator yields texts, dicts
    with `text` and `finish_reason`, or OpenAI's chunks.

    An `InvalidArgument`, `Overloaded`, `Unavailable` or `EngineShutdown` that the generator raises tells the frontend what to do; any other
    exception is an internal error, and a generator that ends without `finish_reason` has failed, too.

    Raises `ValueError` or `TypeError` naming the argument.
    """
    folder = os.fspath(model)
    if not isinstance(folder, str):
        raise TypeError("model is bytes: expected a str or a path")
    options = {
        "model_name": model_name,
        "component": component,
        "endpoint": endpoint,
        "kv_block_size": kv_block_size,
        "context_length": context_length,
        "worker_type": worker_type,
        "migration_limit": migration_limit,
        "total_kv_blocks": total_kv_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "dp_start_rank": dp_start_rank,
        "dp_size": dp_size,
        "enable_local_indexer": enable_local_indexer,
        "publishes_kv_events": publishes_kv_events,
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
        "bootstrap": bootstrap,
        "runtime_data": runtime_data,
    }
    takes_text = not os.path.isdir(folder)
    answers = _Answers(generator, takes_text)
    if takes_text:
        _log.warning("%s is no folder: registered for text input, and requests get no credit for what the cache holds", folder)
    return await _native.register(answers.begin, folder, options, dict(planes))


class _Answers:
    """The requests of one endpoint that are being answered."""

    def __init__(self, generator: Generator, takes_text: bool) -> None:
        if not callable(generator):
            raise TypeError(f"generator is a {type(generator).__name__}: expected a callable that gives an async iterator")
        self._generator = generator
        self._takes_text = takes_text
        self._with_context = _takes_context(generator)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, body: bytes, context: Context, sink: Sink) -> asyncio.Task[None]:
        task = self._loop.create_task(self._answer(body, context, sink))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, body: bytes, context: Context, sink: Sink) -> None:
        try:
            if not await self._outputs(json.loads(body), context, sink):
                await _fail(sink, "internal", "the generator ended without a finish_reason")
        except asyncio.CancelledError:
            if not context.is_stopped():
                # The loop ends, or the engine gave up: another worker can go on.
                await _fail(sink, "shutdown", "the worker stops")
            raise
        except _Failure as failure:
            await _fail(sink, failure.kind, str(failure) or type(failure).__name__)
        except Exception as error:
            _log.exception("request %s failed", context.id())
            await _fail(sink, "internal", f"{type(error).__name__}: {error}")
        finally:
            sink.end()

    async def _outputs(self, request: Request, context: Context, sink: Sink) -> bool:
        chunks = _text.Chunks(request, context.id()) if self._takes_text else None
        if self._takes_text:
            request["prompt"] = _text.prompt_of(request)
        outputs = self._generator(request, context) if self._with_context else self._generator(request)  # type: ignore[call-arg]
        try:
            async for output in outputs:
                ends = False
                if chunks is not None:
                    output, ends = chunks.chunk(output)
                is_last, sent = sink.push(output)
                is_last = is_last or ends
                if sent is not None:
                    await sent
                if is_last:
                    return True
            return False
        finally:
            # An async generator's own `finally` runs now, not when it is collected.
            close = getattr(outputs, "aclose", None)
            if close is not None:
                await close()


async def _fail(sink: Sink, kind: str, message: str) -> None:
    sent = sink.fail(kind, message)
    if sent is not None:
        await sent


def _takes_context(generator: Generator) -> bool:
    try:
        parameters = inspect.signature(generator).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 or any(one.kind is one.VAR_POSITIONAL for one in parameters)
