"""The examples, run as a reader would."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_older import free_port

from conftest import MODEL, ROOT, SOON, Frontend, holds, index_of, soon
from dynamo.llm import Runtime


@contextmanager
def example(name: str, *arguments: str, says: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Ended as by Ctrl-C."""
    process = subprocess.Popen([sys.executable, ROOT / "examples/python" / name, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if says is not None:
            assert re.match(says, process.stdout.readline())
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SOON)


def test_a_custom_engine_serves_from_its_cache(frontend: Frontend) -> None:
    prompt = "a prompt that is long enough for some blocks of its tokens " * 8

    def ask(**more: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        return frontend.ask("/v1/completions", {"model": "toy", "prompt": prompt, "max_tokens": 5} | more)

    with example("custom_engine.py", str(MODEL), says="serving Endpoint") as engine:
        frontend.serves("toy")
        soon("the engine's events are heard", lambda: "\"exact\"" in str(frontend.ask("/workers")[1]).replace("'", '"'))
        status, first, headers = ask()
        assert (status, headers["x-dynamo-overlap-blocks"]) == (200, "0"), first
        held = soon("the blocks arrive", lambda: int(ask()[2]["x-dynamo-overlap-blocks"]))
        again = ask()[1]
        assert held >= 3 and again["usage"]["prompt_tokens_details"]["cached_tokens"] == held * 16
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        status, refused, _ = ask(guided_json={"type": "object"})
        assert (status, refused["error"]["message"]) == (400, "this engine cannot follow a grammar")
    assert engine.returncode == 0


def test_a_pure_python_publisher_is_relayed(runtime: Runtime) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    index = index_of(runtime, 16)
    with example("relay.py", address, "16", says="relaying as worker") as relay:
        engine = subprocess.Popen([sys.executable, ROOT / "examples/python/zmq_publisher.py", address, "16"])
        try:
            holds(index, list(range(64)), 4)
            holds(index, list(range(64)), 0)
            holds(index, list(range(64)), 4)
        finally:
            engine.kill()
            engine.wait()
    assert relay.returncode == 0
    index.shutdown()


def test_vllms_publisher_is_relayed_with_what_was_missed(runtime: Runtime) -> None:
    binary = ROOT / "target/debug/dynamo-mocker"
    if not binary.exists():
        pytest.fail("dynamo-mocker is not built: cargo build -p mocker")
    http, events, replay = free_port(), free_port(), free_port()
    ports = ["--http-port", str(http), "--events-port", str(events), "--replay-port", str(replay)]
    engine = subprocess.Popen([binary, *ports, "--model-name", "demo"], stderr=subprocess.DEVNULL)
    asked = Frontend.__new__(Frontend)
    asked.url = f"http://127.0.0.1:{http}"
    tokens = list(range(100, 164))
    try:
        body = {"model": "demo", "prompt": tokens, "max_tokens": 1}
        soon("the engine answers", lambda: answers(asked, body))
        index = index_of(runtime, 16)
        # It comes after the event: the engine's replay socket has it.
        with example("relay.py", f"tcp://127.0.0.1:{events}", "16", f"tcp://127.0.0.1:{replay}", says="relaying as worker") as relay:
            soon("the prompt's blocks", lambda: list(index.find_matches(tokens).values()) in ([3], [4]))
        assert relay.returncode == 0
        index.shutdown()
    finally:
        engine.terminate()
        engine.wait()


def answers(engine: Frontend, body: dict[str, Any]) -> bool:
    try:
        return engine.ask("/v1/completions", body)[0] == 200
    except OSError:
        return False
