"""The KV events of a running vLLM or SGLang, relayed to the event plane: what its own publisher sends over ZMQ, numbered, recoverable.

vllm serve MODEL --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
                                      "replay_endpoint": "tcp://*:5657"}'
python relay.py tcp://127.0.0.1:5557 16 tcp://127.0.0.1:5657     # events, tokens per block, replay (may be left out)
"""

import signal
import sys

from dynamo.llm import KvEventPublisher, Runtime

events, block_size, *replay = sys.argv[1:]
runtime = Runtime()
publisher = KvEventPublisher(
    component=runtime.component("backend"),
    kv_block_size=int(block_size),
    enable_local_indexer=True,
    zmq_endpoint=events,
    zmq_topic="",
    zmq_replay_endpoint=replay[0] if replay else None,
)
print("relaying as worker", runtime.instance_id, flush=True)
signal.sigwait({signal.SIGINT, signal.SIGTERM})
publisher.shutdown()
runtime.shutdown()
