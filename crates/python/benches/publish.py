"""What publishing costs its caller, and whether everything arrives. Needs the wheel, built optimised, and numpy.

python publish.py            costs, a plane that is dead, a million blocks with memory, and 10,000 publishers made and shut down
python publish.py costs      one of: costs, dead, million, cycles

Each figure is a line; exits with 1 if a bound is broken.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from dynamo.llm import KvEventPublisher, KvIndexer, Runtime

BLOCKS, SIZE = 64, 16
broken: list[str] = []


def bound(what: str, figure: float, most: float, unit: str) -> None:
    print(f"{what}: {figure:.3g} {unit}, at most {most:.3g}", flush=True)
    if figure > most:
        broken.append(what)


def planes(**other: str) -> Runtime:
    return Runtime(**{"discovery_backend": "file", "file_kv": tempfile.mkdtemp(), "event_plane": "zmq", **other})


def rss_mib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cost(work: Callable[[int], None], rounds: int = 2000) -> float:
    """Median seconds of one call. Rounds are spread, so that the publisher's own thread is not what is measured."""
    times = []
    for at in range(rounds):
        began = time.perf_counter()
        work(at)
        times.append(time.perf_counter() - began)
        if at % 50 == 49:
            time.sleep(0.01)
    return statistics.median(times)


def converted(tokens: list[int]) -> None:
    np.array(tokens)


def costs() -> None:
    runtime = planes()
    publisher = KvEventPublisher(runtime.component(), SIZE)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 150_000, BLOCKS * SIZE)
    hashes = rng.integers(0, 2**63, BLOCKS, dtype=np.uint64)
    sizes = np.full(BLOCKS, SIZE)
    token_list, hash_list, size_list = tokens.tolist(), hashes.tolist(), sizes.tolist()
    convert = cost(lambda _: converted(token_list))
    from_list = cost(lambda _: publisher.publish_stored(token_list, size_list, hash_list))
    from_array = cost(lambda _: publisher.publish_stored(tokens, sizes, hashes))
    print(f"list to numpy array of {len(token_list)}: {convert * 1e6:.1f} us", flush=True)
    bound("publish_stored of 64 blocks from a list", from_list * 1e6, 2 * convert * 1e6, "us")
    bound("publish_stored of 64 blocks from arrays", from_array * 1e6, from_list / 4 * 1e6, "us")
    publisher.shutdown()
    runtime.shutdown()


def dead() -> None:
    runtime = planes(event_plane="nats", nats_server="nats://127.0.0.1:9", discovery_backend="etcd", etcd_endpoints="http://127.0.0.1:9")
    publisher = KvEventPublisher(runtime.component(), SIZE, enable_local_indexer=True)
    worst = 0.0
    # A busy machine takes a process off its cores now and then, which is no wait: such calls are left out.
    preempted = 0
    for at in range(5000):
        names = list(range(at * BLOCKS, (at + 1) * BLOCKS))
        tokens = list(range(BLOCKS * SIZE))
        switches, began = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw, time.perf_counter()
        publisher.publish_stored(tokens, [SIZE] * BLOCKS, names)
        publisher.publish_removed(names)
        took = time.perf_counter() - began
        if resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw == switches:
            worst = max(worst, took)
        else:
            preempted += 1
    print(f"{preempted} of 5,000 pairs of calls were preempted", flush=True)
    print("dead plane:", dict(publisher.counters()), runtime.health(), flush=True)
    bound("the slowest of 5,000 pairs of calls with every plane dead", worst * 1e3, 1.0, "ms")
    began = time.perf_counter()
    publisher.shutdown(timeout=1.0)
    runtime.shutdown(timeout=1.0)
    bound("both shutdowns with every plane dead", time.perf_counter() - began, 3.0, "s")


def million() -> None:
    """A million blocks after two, which fill the ring of events kept for others (64 MiB); a window is held at a time. An index beside counts
    what arrives."""
    runtime = planes()
    publisher = KvEventPublisher(runtime.component(), SIZE, enable_local_indexer=True)
    index = KvIndexer(runtime.component(), SIZE)
    calls, held = 3_000_000 // BLOCKS, 256
    tokens = np.arange(BLOCKS * SIZE, dtype=np.uint32)
    sizes = np.full(BLOCKS, SIZE)
    names = [np.arange(at * BLOCKS, (at + 1) * BLOCKS, dtype=np.uint64) for at in range(calls)]
    levels = []
    began = time.perf_counter()
    for at in range(calls):
        tokens[0] = at  # another prompt
        publisher.publish_stored(tokens, sizes, names[at])
        if at >= held:
            publisher.publish_removed(names[at - held])
        if at % 500 == 499:
            publisher.flush(60.0)
            levels.append(rss_mib())
    publisher.flush(60.0)
    took = time.perf_counter() - began
    counters = publisher.counters()
    deadline = time.monotonic() + 60
    while (workers := index.workers()) and (workers[0]["trust"], workers[0]["last_event_id"]) != ("exact", counters["last_event_id"]):
        if time.monotonic() > deadline:
            broken.append("arrival")
            break
        time.sleep(0.05)
    print(f"{calls * BLOCKS:,} blocks in {took:.1f} s;", dict(counters), workers, flush=True)
    tokens[0] = calls - 1
    found = index.find_matches(tokens)
    if found != {(runtime.instance_id, 0): BLOCKS} or index.blocks != held * BLOCKS:
        broken.append(f"the index holds {index.blocks} blocks, and of the last prompt {found}")
    last = levels[len(levels) * 2 // 3 :]
    bound(f"growth of memory over the last million blocks, from {last[0]:.0f} MiB", max(last) - last[0], 8.0, "MiB")
    index.shutdown()
    publisher.shutdown()
    runtime.shutdown()


def cycles(count: int = 10_000) -> None:
    runtime = planes()
    component = runtime.component()

    def state() -> tuple[int, int, float]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), rss_mib()

    def cycle() -> None:
        publisher = KvEventPublisher(component, SIZE, enable_local_indexer=True)
        publisher.publish_stored(list(range(SIZE)), [SIZE], [7])
        publisher.shutdown()

    for _ in range(count // 10):
        cycle()
    before, began = state(), time.perf_counter()
    for _ in range(count - count // 10):
        cycle()
    took, after = time.perf_counter() - began, state()
    print(f"{count} publishers made and shut down, {took / (count - count // 10) * 1e3:.2f} ms each; threads, files, MiB: {before} -> {after}")
    # Threads for blocking work come and go.
    bound("more threads", after[0] - before[0], 8, "")
    bound("more open files", after[1] - before[1], 2, "")
    bound("more memory", after[2] - before[2], 8.0, "MiB")
    runtime.shutdown()


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {"costs": costs, "dead": dead, "million": million, "cycles": cycles}
    for name in sys.argv[1:] or parts:
        print(f"-- {name}", flush=True)
        parts[name]()
    if broken:
        print("broken:", *broken, sep="\n  ")
    sys.exit(bool(broken))
