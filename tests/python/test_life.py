"""Lives and deaths: forks, ends without a shutdown, planes that are dead, cycles of creation and shutdown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import SOON, holds, index_of, run, soon
from dynamo.llm import KvEventPublisher, Runtime

TOKENS = list(range(16))

START = """
import asyncio, os, sys, threading, time
from dynamo.llm import KvEventPublisher, KvEventSubscriber, KvIndexer, Runtime, register_model
TOKENS = list(range(16))
async def generate(request):
    yield {"token_ids": [1], "finish_reason": "stop"}
"""


def records(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_a_fork_raises_where_it_cannot_go_on_and_can_begin_anew(planes: Path) -> None:
    outcome = run(
        START
        + """
runtime = Runtime()
publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
index = KvIndexer(runtime.component(), 4)
publisher.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])
publisher.flush()
child = os.fork()
if child == 0:
    for use in (
        lambda: publisher.publish_stored(TOKENS, [4] * 4, [5, 6, 7, 8]),
        lambda: publisher.publish_removed([1]),
        lambda: publisher.counters(),
        lambda: publisher.shutdown(),
        lambda: index.find_matches(TOKENS),
        lambda: runtime.component(),
        lambda: runtime.shutdown(),
    ):
        try:
            use()
        except RuntimeError as error:
            assert "forked from it: make a new one here" in str(error), error
        else:
            raise SystemExit("silence")
    own = Runtime()
    assert own.instance_id != 0
    anew = KvEventPublisher(own.component(), 4, enable_local_indexer=True)
    anew.publish_stored(TOKENS[:8], [4] * 2, [1, 2])
    anew.flush()
    assert anew.find_matches(TOKENS) == 2
    del publisher, index, runtime
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
# The child took nothing from its parent: sockets still answer here.
publisher.publish_removed([4])
deadline = time.monotonic() + 20
while (found := index.find_matches(TOKENS)) != {(runtime.instance_id, 0): 3}:
    assert time.monotonic() < deadline, (found, index.workers())
    time.sleep(0.01)
late = KvIndexer(runtime.component(), 4)
while (found := late.find_matches(TOKENS)) != {(runtime.instance_id, 0): 3}:
    assert time.monotonic() < deadline, (found, late.workers())
    time.sleep(0.01)
print("done")
""",
        within=60.0,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "done\n"), outcome.stderr
    assert records(planes) == []


def test_children_of_one_parent_have_ids_of_their_own() -> None:
    outcome = run(
        START
        + """
Runtime().shutdown()
for _ in range(3):
    if os.fork() == 0:
        own = Runtime()
        print(own.instance_id, KvEventPublisher(own.component(), 4).publisher_id, flush=True)
        sys.exit()
    os.wait()
own = Runtime()
print(own.instance_id, KvEventPublisher(own.component(), 4).publisher_id)
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    assert len(set(outcome.stdout.split())) == 8, outcome.stdout


@pytest.mark.parametrize(
    "code",
    [
        "publisher = KvEventPublisher(Runtime().component(), 4, enable_local_indexer=True); publisher.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])",
        "index = KvIndexer(Runtime().component(), 4)",
        "relay = KvEventPublisher(Runtime().component(), 4, zmq_endpoint='tcp://127.0.0.1:9')",
        "kept = asyncio.run(register_model('m', generate))",
        "asyncio.run(register_model('m', generate))",
        "publisher = KvEventPublisher(Runtime().component(), 4); threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        "publisher = KvEventPublisher(Runtime().component(), 4); raise SystemExit(0)",
        """
async def main():
    events = KvEventSubscriber(Runtime().component())
    waiting = asyncio.ensure_future(events.__anext__())
    await asyncio.sleep(0)
asyncio.run(main())
""",
    ],
)
def test_an_end_without_a_shutdown_is_soon_and_leaves_no_records(planes: Path, code: str) -> None:
    began = time.monotonic()
    outcome = run(START + code)
    assert outcome.returncode == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr and "panicked" not in outcome.stderr, outcome.stderr
    assert records(planes) == []
    assert time.monotonic() - began < 10


def test_what_is_queued_at_the_end_is_published(runtime: Runtime) -> None:
    index = index_of(runtime, 4)
    # It removes nothing: what it held goes with its records, so only its last words are looked at.
    outcome = run(
        START
        + """
runtime = Runtime()
publisher = KvEventPublisher(runtime.component("other"), 4, enable_local_indexer=True)
index = KvIndexer(runtime.component("other"), 4)
while not any(worker["connected"] for worker in index.workers()):
    time.sleep(0.01)
publisher.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])
import atexit
from dynamo.llm import _native
_native.leave()
assert publisher.counters()["events"] == 1, publisher.counters()
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    index.shutdown()


@pytest.mark.parametrize("plane", [{"event_plane": "nats", "nats_server": "nats://127.0.0.1:9"}, {"event_plane": "zmq"}])
def test_dead_planes_block_nobody_and_the_counters_say_what_was_lost(plane: dict[str, str]) -> None:
    dead = Runtime(discovery_backend="etcd", etcd_endpoints="http://127.0.0.1:9", **plane)
    publisher = KvEventPublisher(dead.component(), 4, enable_local_indexer=True)
    slow = 0
    for at in range(2000):
        began = time.perf_counter()
        publisher.publish_stored(TOKENS, [4] * 4, [at * 4 + 1, at * 4 + 2, at * 4 + 3, at * 4 + 4])
        publisher.publish_removed([at * 4 + 4])
        slow += time.perf_counter() - began > 0.001
    # A busy machine takes this process off its cores now and then; a wait would be in each call.
    assert slow < 100
    publisher.flush(SOON)
    counters = publisher.counters()
    assert counters["last_event_id"] >= counters["events"] > 0 and counters["queued_bytes"] == 0
    soon("it is said", lambda: dead.health()["discovery"])
    began = time.monotonic()
    publisher.shutdown(timeout=1.0)
    dead.shutdown(timeout=1.0)
    assert time.monotonic() - began < 10


def test_after_a_shutdown_calls_say_so_and_a_second_one_does_nothing(runtime: Runtime) -> None:
    publisher = KvEventPublisher(runtime.component(), 4)
    publisher.shutdown()
    publisher.shutdown()
    store: Callable[[], None] = lambda: publisher.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])  # noqa: E731
    for use in (publisher.publish_cleared, publisher.flush, store):
        with pytest.raises(RuntimeError, match="was shut down"):
            use()
    with pytest.raises(RuntimeError, match="enable_local_indexer=True"):
        publisher.find_matches(TOKENS)


def test_publishers_that_come_and_go_leave_nothing(runtime: Runtime) -> None:
    def cycle() -> None:
        publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
        publisher.publish_stored(TOKENS, [4] * 4, [1, 2, 3, 4])
        publisher.shutdown()

    def state() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        cycle()
    threads, files = state()
    for _ in range(200):
        cycle()
    # Threads for blocking work come and go.
    assert state()[1] <= files + 2 and state()[0] <= threads + 8


def test_many_threads_publish_at_once(runtime: Runtime) -> None:
    from threading import Thread

    publisher = KvEventPublisher(runtime.component(), 4, enable_local_indexer=True)
    index = index_of(runtime, 4)

    def publish(thread: int) -> None:
        for at in range(100):
            publisher.publish_stored([thread, at, 0, 0], [4], [thread * 1000 + at])

    threads = [Thread(target=publish, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    soon("all of them", lambda: index.blocks == 800)
    assert publisher.counters()["dropped_stores"] == 0
    holds(index, [7, 99, 0, 0], 1)
    index.shutdown()
    publisher.shutdown()


@pytest.mark.parametrize("name", ["ai-dynamo", "ai-dynamo-runtime"])
def test_beside_the_original_package_it_refuses_to_be_imported(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "site" / f"{name.replace('-', '_')}-1.6.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.6.1\n")
    refused = run("import dynamo.llm", PYTHONPATH=os.pathsep.join([str(folder.parent), *sys.path]))
    assert refused.returncode == 1
    assert f"cannot be used beside the original dynamo package: {name} 1.6.1 is installed" in refused.stderr


def test_beside_a_foreign_package_of_that_name_it_refuses_to_be_imported(tmp_path: Path) -> None:
    (tmp_path / "site/dynamo/runtime").mkdir(parents=True)
    refused = run("import dynamo.llm", PYTHONPATH=os.pathsep.join([*sys.path, str(tmp_path / "site")]))
    assert refused.returncode == 1 and "has a runtime of another package" in refused.stderr


def test_the_bench_runs(tmp_path: Path) -> None:
    bench = Path(__file__).parents[2] / "crates/python/benches/publish.py"
    # Not for its figures: this is not the build they are of.
    outcome = subprocess.run([sys.executable, bench, "costs"], capture_output=True, text=True, timeout=60, check=False)
    assert "publish_stored of 64 blocks from arrays" in outcome.stdout, outcome.stderr
