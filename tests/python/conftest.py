"""Planes in a folder of the test's own, a frontend as a process, and waiting for what comes soon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import KvIndexer, Runtime

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests/models/tiny-llama"
SOON = 20.0

# A shell has what it starts in the background ignore this, and children would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def soon(what: str, found: Callable[[], Any]) -> Any:
    """What is found, once there is something."""
    deadline = time.monotonic() + SOON
    while not (something := found()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not after {SOON} s")
        time.sleep(0.01)
    return something


def run(code: str, *arguments: str, within: float = SOON, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, with planes where this test's are."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=within, env=os.environ | environment, check=False)


@pytest.fixture(autouse=True)
def planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("DYN_", "ETCD_", "NATS_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "discovery"
    folder.mkdir()
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "file")
    monkeypatch.setenv("DYN_FILE_KV", str(folder))
    return folder


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime()
    yield made
    made.shutdown()


@pytest.fixture
def older() -> Iterator[list[str]]:
    """What is said of older forms."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        heard: list[str] = []
        yield heard
        heard.extend(str(one.message) for one in said)


def index_of(runtime: Runtime, size: int) -> KvIndexer:
    return KvIndexer(runtime.component(), size)


def holds(index: KvIndexer, tokens: Any, blocks: int, **key: Any) -> None:
    """Waits until one rank holds so many leading blocks of a prompt."""
    found: dict[tuple[int, int], int] = {}

    def look() -> bool:
        nonlocal found
        found = index.find_matches(tokens, **key)
        return list(found.values()) == ([blocks] if blocks else [])

    try:
        soon("a match", look)
    except pytest.fail.Exception:
        pytest.fail(f"expected {blocks} blocks, found {found}; {index.workers()}")


class Frontend:
    """`dynamo-frontend` over the test's planes."""

    def __init__(self) -> None:
        binary = os.environ.get("DYNAMO_TEST_FRONTEND", str(ROOT / "target/debug/dynamo-frontend"))
        command = [binary, "--http-host", "127.0.0.1", "--http-port", "0", "--router-mode", "kv"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"127\.0\.0\.1:(\d+)", line):
                self.url = f"http://127.0.0.1:{found[1]}"
                break
        # What it says beyond that is read, so that it never waits for a reader.
        self.log = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any], dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SOON) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), dict(error.headers)

    def serves(self, model: str) -> None:
        soon(f"{model} is served", lambda: any(one["id"] == model for one in self.ask("/v1/models")[1]["data"]))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(SOON)
        self.log.wait(SOON)


@pytest.fixture
def frontend(planes: Path) -> Iterator[Frontend]:
    made = Frontend()
    yield made
    made.stop()
