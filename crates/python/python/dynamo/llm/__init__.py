"""KV events, token-level workers and KV-aware routing for engines written in Python.

- `KvEventPublisher` publishes what an engine's cache holds, by calls or by relaying the engine's own ZMQ socket.
- `register_model` serves an async generator to every frontend of the fleet.
- `KvEventSubscriber` and `KvIndexer` are the other end, for routers and cache coordinators.

The planes (discovery, events, requests) are named by arguments or by Dynamo's environment variables (`DYN_*`, `ETCD_ENDPOINTS`,
`NATS_SERVER`). None needs to be there when something here is created, and none that goes away blocks a caller.
"""

from dynamo.llm import _alone

_alone.check()

import atexit as _atexit

from dynamo.llm import _native
from dynamo.llm._native import Component, Context, Endpoint, KvEventPublisher, KvIndexer, Runtime
from dynamo.llm._older import ZmqKvEventPublisher, ZmqKvEventPublisherConfig, register_llm
from dynamo.llm._serve import EngineShutdown, InvalidArgument, Overloaded, Unavailable, register_model
from dynamo.llm._subscriber import KvEvent, KvEventSubscriber, Recovery

_atexit.register(_native.leave)

__all__ = [
    "Component",
    "Context",
    "Endpoint",
    "EngineShutdown",
    "InvalidArgument",
    "KvEvent",
    "KvEventPublisher",
    "KvEventSubscriber",
    "KvIndexer",
    "Overloaded",
    "Recovery",
    "Runtime",
    "Unavailable",
    "ZmqKvEventPublisher",
    "ZmqKvEventPublisherConfig",
    "register_llm",
    "register_model",
]
