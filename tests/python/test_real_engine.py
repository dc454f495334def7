"""The relay beside a real vLLM on CPU; `tests/run --engine` says where that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_examples import example
from test_older import free_port

from conftest import MODEL, Frontend, index_of, soon
from dynamo.llm import Runtime

PLACE = os.environ.get("DYNAMO_TEST_VLLM")
pytestmark = pytest.mark.skipif(PLACE is None, reason="tests/run --engine")

START_WITHIN = 300.0
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def test_a_real_vllm_is_relayed_and_what_is_found_is_what_it_cached(runtime: Runtime, tmp_path: Path) -> None:
    http, events, replay = free_port(), free_port(), free_port()
    publishes = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
    }
    flags = f"--served-model-name tiny --host 127.0.0.1 --port {http} --dtype float32 --enforce-eager --block-size 32 --max-model-len 1024"
    flags += " --max-num-seqs 4 --num-gpu-blocks-override 256 --enable-prefix-caching --enable-prompt-tokens-details"
    command = [f"{PLACE}/bin/vllm", "serve", str(MODEL), *flags.split(), "--kv-events-config", json.dumps(publishes)]
    environment = os.environ | QUIET | {"XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (tmp_path / "engine.log").open("w") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    asked = Frontend.__new__(Frontend)
    asked.url = f"http://127.0.0.1:{http}"

    def cached(tokens: list[int]) -> int:
        body = {"model": "tiny", "prompt": tokens, "max_tokens": 1, "temperature": 0}
        status, answer, _ = asked.ask("/v1/completions", body)
        assert status == 200, answer
        details = answer["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"]) if details else 0

    def is_up() -> bool:
        assert engine.poll() is None, (tmp_path / "engine.log").read_text()
        try:
            return asked.ask("/v1/models")[0] == 200
        except OSError:
            return False

    try:
        deadline = time.monotonic() + START_WITHIN
        while not is_up():
            assert time.monotonic() < deadline, (tmp_path / "engine.log").read_text()
            time.sleep(0.5)
        early, late = list(range(100, 265)), list(range(300, 401))
        assert cached(early) == 0
        index = index_of(runtime, 32)
        with example("relay.py", f"tcp://127.0.0.1:{events}", "32", f"tcp://127.0.0.1:{replay}", says="relaying as worker"):
            # Its replay has what was published before the relay came.
            soon("the blocks of before", lambda: list(index.find_matches(early).values()) == [5])
            assert cached(late) == 0
            soon("the blocks of now", lambda: list(index.find_matches(late).values()) == [3])
            assert (cached(early), cached(late)) == (160, 96)
        index.shutdown()
    finally:
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
