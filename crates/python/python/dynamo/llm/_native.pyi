"""The native half of `dynamo.llm`: its names are exported there."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, Union

from typing_extensions import Self, Unpack

class _Buffer(Protocol):
    """A numpy array, an `array.array`, a `memoryview` or another one-dimensional buffer of integers of 8 to 64 bits."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: Any, /) -> Any: ...

Integers = Union[Sequence[int], _Buffer]

class Planes(TypedDict, total=False):
    """Where a process takes part. What is not given is by the environment variable; see README."""

    namespace: str | None
    """The namespace (`DYN_NAMESPACE`, "dynamo")."""
    discovery_backend: str | None
    """"file" or "etcd" (`DYN_DISCOVERY_BACKEND`; etcd where `ETCD_ENDPOINTS` is set, else file)."""
    file_kv: str | None
    """The folder of file discovery (`DYN_FILE_KV`)."""
    etcd_endpoints: str | None
    """Members of etcd, separated by commas (`ETCD_ENDPOINTS`)."""
    event_plane: str | None
    """"nats" or "zmq" (`DYN_EVENT_PLANE`; nats with etcd, else zmq)."""
    request_plane: str | None
    """"tcp" or "nats" (`DYN_REQUEST_PLANE`, "tcp")."""
    nats_server: str | None
    """The NATS server (`NATS_SERVER`, "nats://localhost:4222")."""
    event_plane_host: str | None
    """Host at which others reach this process's event sockets (`DYN_EVENT_PLANE_HOST`; loopback if not given)."""
    tcp_rpc_host: str | None
    """Host at which others send this process requests (`DYN_TCP_RPC_HOST`; loopback if not given)."""
    tcp_rpc_port: int | str | None
    """Port of the same (`DYN_TCP_RPC_PORT`; any free one)."""

class Counters(TypedDict):
    """What a publisher has done since it was created, and what it could not do."""

    events: int
    """Events published."""
    last_event_id: int
    """The id of the last one; ids that were skipped count, too."""
    messages: int
    """Messages they travelled in."""
    dropped_messages: int
    """Messages dropped for a subscriber, or for NATS, that took too little."""
    dropped_stores: int
    """Stores dropped because the queue (64 MiB) was full; consumers see a gap."""
    dropped_removals: int
    """Removals and clears dropped because even their reserve was full; everything held was then given up."""
    skipped_ids: int
    """Event ids skipped to tell consumers of a gap."""
    refused_stores: int
    """Stores refused because the publisher's own index is full, or that an engine's socket told wrongly."""
    unknown_removals: int
    """Removals of blocks that were not held."""
    orphans: int
    """Stores that wait for their parents now."""
    dropped_orphans: int
    """Such stores given up for want of room."""
    queued_bytes: int
    """Bytes of calls queued now."""

class Worker(TypedDict):
    """One worker's rank, as a `KvIndexer` knows it."""

    worker_id: int
    dp_rank: int
    connected: bool
    """Whether a publisher of it is connected: a live-only one is heard from then on."""
    trust: str
    """"exact", "recovering", "degraded" or "blind"."""
    reason: str
    """Why it is not exact."""
    blocks: int
    """Blocks held in the accelerator's memory."""
    last_event_id: int | None

class Runtime:
    """This process on the planes, without a model: for publishers beside an engine, and for consumers.

    Raises `ValueError` or `TypeError` naming the argument or the environment variable. No plane needs to be there.
    """

    def __new__(cls, **planes: Unpack[Planes]) -> Self: ...
    @property
    def instance_id(self) -> int:
        """This process in keys, records and events: the `worker_id` of what it publishes."""
    @property
    def namespace(self) -> str: ...
    def component(self, name: str = "backend", *, namespace: str | None = None) -> Component: ...
    def health(self) -> dict[str, str | None]:
        """Each plane in use, and why it is stale; `None` while it is not."""
    def shutdown(self, timeout: float = 5.0) -> None:
        """Withdraws every record and closes the planes. Waits at most `timeout` seconds for running answers."""

class Component:
    """A group of workers that do the same, as this process is one."""

    @property
    def instance_id(self) -> int: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    def endpoint(self, name: str = "generate") -> Endpoint: ...

class Endpoint:
    """An endpoint of a component."""

    @property
    def instance_id(self) -> int: ...
    @property
    def path(self) -> str:
        """`namespace/component/endpoint`."""
    def connection_id(self) -> int:
        """The older name of `instance_id`."""
    def shutdown(self, timeout: float = 30.0) -> asyncio.Future[None]:
        """Withdraws the model, takes requests of frontends that have not heard of it for half a second, lets running ones finish within
        `timeout` seconds, cancels the rest, and closes the planes. To be awaited on the loop that serves."""

class KvEventPublisher:
    """Publishes what one data-parallel rank of an engine has in its cache. Every method may be called from any thread.

    `component` is what `register_model` returned, or `Runtime().component()`. `kv_block_size` is the engine's own, in tokens.
    `enable_local_indexer` lets consumers that missed events ask for them here, and `find_matches` work; without it the publisher is live
    only. With `zmq_endpoint` it relays an engine's own socket (vLLM, SGLang) instead of taking calls: `zmq_topic` is a prefix of the
    topics wanted ("": all), `zmq_replay_endpoint` the engine's replay socket. `worker_id` is accepted as in the older API.

    Calls that publish only queue: they never wait for a plane. What a full queue drops is in `counters()`, and consumers see a gap.
    Raises `ValueError` or `TypeError` naming the argument; `RuntimeError` after `shutdown`, and in a process forked from its own.
    """

    def __new__(
        cls,
        component: Component | Endpoint,
        kv_block_size: int,
        dp_rank: int | None = None,
        enable_local_indexer: bool = False,
        zmq_endpoint: str | None = None,
        zmq_topic: str | None = None,
        *,
        zmq_replay_endpoint: str | None = None,
        worker_id: int | None = None,
    ) -> Self: ...
    def publish_stored(
        self,
        token_ids: Integers,
        num_block_tokens: Integers,
        block_hashes: Integers,
        parent_hash: int | None = None,
        block_mm_infos: list[dict[str, Any] | None] | None = None,
        lora_name: str | None = None,
        *,
        cache_salt: str | None = None,
        event_id: int | None = None,
        lora_id: int | None = None,
    ) -> None:
        """Blocks were stored, in the order of their prompt.

        `token_ids`: `kv_block_size` ids for each block, 0 to 2**32-1. `num_block_tokens`: one entry for each block, all `kv_block_size`.
        `block_hashes`: the engine's cumulative hash of each block, -2**63 to 2**64-1, no two alike. `parent_hash`: that of the block before
        the first; `None` begins a prompt. `block_mm_infos`: for each block `None` or `{"mm_objects": [{"mm_hash": int}]}`. `lora_name` and
        `cache_salt` count for the first block of a prompt; its children have them, too. `event_id` and `lora_id` are the older API's.
        """
    def publish_removed(self, block_hashes: Integers, *, event_id: int | None = None) -> None:
        """One copy of each of these blocks is gone from the accelerator's memory."""
    def publish_cleared(self, *, event_id: int | None = None) -> None:
        """Every block is gone."""
    def flush(self, timeout: float = 5.0) -> None:
        """Waits until all that was queued before is on the plane. Raises `TimeoutError` after `timeout` seconds."""
    def find_matches(self, token_ids: Integers, lora_name: str | None = None, *, cache_salt: str | None = None) -> int:
        """Leading blocks of a prompt that are held here; needs `enable_local_indexer=True`."""
    def counters(self) -> Counters: ...
    @property
    def publisher_id(self) -> int:
        """Its id in records and messages, drawn anew for each publisher."""
    def shutdown(self, timeout: float = 5.0) -> None:
        """Takes no further call, publishes what is queued within `timeout` seconds and withdraws its records. A second call does nothing."""

class KvIndexer:
    """An index of what every worker of a component (or of a `Runtime`'s namespace) holds, kept by their events as a frontend keeps it:
    complete, and healed after each gap, where publishers have `enable_local_indexer=True`. `kv_block_size` is theirs, in tokens."""

    def __new__(cls, component: Component | Runtime, kv_block_size: int) -> Self: ...
    def find_matches(
        self, token_ids: Integers, lora_name: str | None = None, *, cache_salt: str | None = None
    ) -> dict[tuple[int, int], int]:
        """Leading blocks of a prompt that each (worker id, rank) holds; those that hold none are left out."""
    def workers(self) -> list[Worker]:
        """Every rank that publishes, and how far what is known of it can be trusted."""
    @property
    def blocks(self) -> int:
        """Distinct blocks in the index."""
    def shutdown(self) -> None: ...

class Context:
    """What a generator knows of a request beside its body."""

    def id(self) -> str: ...
    @property
    def headers(self) -> list[tuple[str, str]]: ...
    def is_stopped(self) -> bool:
        """Whether the asker has stopped or left."""
    def is_killed(self) -> bool: ...
    def async_killed_or_stopped(self) -> asyncio.Future[bool]: ...

class Sink:
    def push(self, output: Any) -> tuple[bool, asyncio.Future[bool] | None]: ...
    def end(self) -> None: ...
    def fail(self, kind: str, message: str) -> asyncio.Future[bool] | None: ...

class Bell:
    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def drain(self) -> None: ...

class Subscriber:
    def __new__(cls, component: Component | Runtime) -> Self: ...
    def next(self) -> asyncio.Future[dict[str, Any] | None]: ...
    def recover(
        self, worker_id: int, dp_rank: int, start_event_id: int | None
    ) -> asyncio.Future[tuple[bool, list[dict[str, Any]], int]]: ...

def leave() -> None: ...
def register(
    begin: Callable[[bytes, Context, Sink], asyncio.Task[None]], model: str, options: dict[str, Any], planes: dict[str, Any]
) -> asyncio.Future[tuple[Component, Endpoint]]: ...
