"""The same engine behind a frontend of NVIDIA Dynamo 1.6.1; `tests/run --dynamo` says where that is installed."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_examples import example
from test_older import free_port

from conftest import MODEL, ROOT, SOON, Frontend, soon
from dynamo.llm import Context, register_model

PLACE = os.environ.get("DYNAMO_TEST_DYNAMO")
pytestmark = pytest.mark.skipif(PLACE is None, reason="tests/run --dynamo")


class RealFrontend(Frontend):
    def __init__(self, mode: str, log: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [f"{PLACE}/bin/python", "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", mode]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, text=True, env=os.environ | {"DYN_EVENT_PLANE": "zmq"})

    def serves(self, model: str) -> None:
        def listed() -> bool:
            try:
                return any(one["id"] == model for one in self.ask("/v1/models")[1]["data"])
            except OSError:
                return False

        for _ in range(3):
            try:
                soon(f"{model} is served", listed)
                return
            except pytest.fail.Exception:
                assert self.process.poll() is None
        pytest.fail(f"{model} is not served")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(SOON)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealFrontend]:
    made = RealFrontend(request.param, tmp_path / "frontend.log")
    yield made
    made.stop()


@pytest.mark.parametrize("real", ["kv"], indirect=True)
def test_a_real_frontend_sends_tokens_and_shows_what_was_cached(real: RealFrontend) -> None:
    prompt = "a prompt that is long enough for some blocks of its tokens " * 8
    body = {"model": "toy", "prompt": prompt, "max_tokens": 5}
    with example("custom_engine.py", str(MODEL), says="serving Endpoint"):
        real.serves("toy")
        status, first, _ = real.ask("/v1/completions", body)
        assert (status, first["usage"]["completion_tokens"]) == (200, 5), first
        again = real.ask("/v1/completions", body)[1]
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
        chat = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        assert real.ask("/v1/chat/completions", chat)[1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("real", ["round-robin"], indirect=True)
def test_a_real_frontend_hands_on_text(real: RealFrontend) -> None:
    seen: list[dict[str, Any]] = []

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        seen.append(request)
        yield "hello "
        yield {"text": "world", "finish_reason": "stop"}

    async def main() -> None:
        _, endpoint = await register_model("bare", generate)
        await asyncio.to_thread(real.serves, "bare")
        status, body, _ = await asyncio.to_thread(real.ask, "/v1/completions", {"model": "bare", "prompt": "say it", "max_tokens": 9})
        assert (status, body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (200, "hello world", "stop"), body
        chat = {"model": "bare", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
        status, body, _ = await asyncio.to_thread(real.ask, "/v1/chat/completions", chat)
        assert (status, body["choices"][0]["message"]["content"]) == (200, "hello world"), body
        await endpoint.shutdown()

    asyncio.run(main())
    assert (seen[0]["prompt"], seen[0]["max_tokens"]) == ("say it", 9)
    assert seen[1]["prompt"] == "system: be brief\nuser: hi\nassistant:"


def test_a_real_worker_that_takes_text_is_served_by_ours(frontend: Frontend, tmp_path: Path) -> None:
    with (tmp_path / "worker.log").open("w") as log:
        command = [f"{PLACE}/bin/python", str(ROOT / "tests/dynamo/text_worker.py")]
        worker = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"DYN_EVENT_PLANE": "zmq"})
    try:
        for _ in range(3):
            try:
                frontend.serves("bare")
                break
            except pytest.fail.Exception:
                assert worker.poll() is None
        status, body, _ = frontend.ask("/v1/chat/completions", {"model": "bare", "messages": [{"role": "user", "content": "hi"}]})
        assert (status, body["choices"][0]["message"]) == (200, {"role": "assistant", "content": "hello world"}), body
        status, body, _ = frontend.ask("/v1/completions", {"model": "bare", "prompt": "say", "a_field_of_the_engine": 1})
        assert (status, body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (200, "hello world", "stop"), body
        assert frontend.ask("/v1/completions", {"model": "bare", "prompt": "fail"})[0] == 500
        assert frontend.ask("/v1/completions", {"model": "bare", "prompt": "again"})[0] == 200
    finally:
        worker.kill()
        worker.wait()
