"""The older API: each form warns once, with the call that replaces it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo.llm._native import Component, Endpoint, KvEventPublisher
from dynamo.llm._serve import Generator, register_model

if TYPE_CHECKING:
    from typing_extensions import Self

_warned: set[str] = set()


def _warn(form: str, new: str, stacklevel: int = 3) -> None:
    if form not in _warned:
        _warned.add(form)
        warnings.warn(f"{form} is replaced by {new}", DeprecationWarning, stacklevel=stacklevel)


async def register_llm(model: str, generator: Generator, **options: Any) -> tuple[Component, Endpoint]:
    """The older name of `register_model`."""
    _warn("register_llm(...)", "await register_model(model=..., generator=...)")
    return await register_model(model, generator, **options)


@dataclass
class ZmqKvEventPublisherConfig:
    """What `ZmqKvEventPublisher` relays. `worker_id` is not needed any more."""

    worker_id: int | None = None
    kv_block_size: int = 16
    zmq_endpoint: str = "tcp://127.0.0.1:5557"
    zmq_topic: str = ""
    enable_local_indexer: bool = False
    dp_rank: int = 0

    def __post_init__(self) -> None:
        new = "KvEventPublisher(component=..., kv_block_size=..., zmq_endpoint=..., zmq_topic=...)"
        # Between the caller and this lies the dataclass's own `__init__`.
        _warn("ZmqKvEventPublisherConfig(...)", new, stacklevel=4)


class ZmqKvEventPublisher(KvEventPublisher):
    """The older form of a publisher that relays an engine's socket."""

    def __new__(cls, component: Component | Endpoint, config: ZmqKvEventPublisherConfig) -> Self:
        _warn("ZmqKvEventPublisher(component, config)", "KvEventPublisher(component=..., kv_block_size=..., zmq_endpoint=...)")
        return super().__new__(
            cls,
            component=component,
            kv_block_size=config.kv_block_size,
            dp_rank=config.dp_rank,
            enable_local_indexer=config.enable_local_indexer,
            zmq_endpoint=config.zmq_endpoint,
            zmq_topic=config.zmq_topic,
            worker_id=config.worker_id,
        )
