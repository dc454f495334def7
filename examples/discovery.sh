#!/usr/bin/env bash
# The fleet of docker-compose.yml on one machine, no GPU: engines that announce themselves. etcd and NATS, two simulated engines,
# beside each a dynamo-worker that registers it and relays its KV events, and two frontends that find them.
#
#   examples/discovery.sh                   frontends listen on 8000 and 8001, all else on free ports of loopback; Ctrl-C ends everything
#   PORT=9000 examples/discovery.sh         other ports: 9000 and 9001
#   BIN=target/debug examples/discovery.sh  binaries that are built already
#
# Needs etcd and nats-server: apt-get install etcd-server nats-server.
# Then: examples/chat.py http://127.0.0.1:8000, or half of the conversation with the other frontend.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin
for need in etcd nats-server; do
  command -v "$need" >/dev/null || { echo "missing: $need; apt-get install -y etcd-server nats-server" >&2; exit 69; }
done
port=${PORT:-8000}
if [ -z "${BIN:-}" ]; then
  cargo build --release --locked -p dynamo-frontend -p mocker -p worker
  BIN=target/release
fi

# A port of loopback on which nobody listens.
free_port() {
  local port
  while port=$((RANDOM % 16000 + 15000)); do
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
}

folder=$(mktemp -d)
planes=() fleet=()
finish() {
  trap - EXIT INT TERM
  # The planes last, so that the workers can withdraw.
  for pids in "${fleet[*]}" "${planes[*]}"; do
    kill $pids 2>/dev/null || true
    wait $pids 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap finish EXIT INT TERM

etcd_url=http://127.0.0.1:$(free_port) peer_url=http://127.0.0.1:$(free_port) nats_port=$(free_port)
etcd --data-dir "$folder/etcd" --name one --initial-cluster "one=$peer_url" --log-level error \
  --listen-client-urls "$etcd_url" --advertise-client-urls "$etcd_url" \
  --listen-peer-urls "$peer_url" --initial-advertise-peer-urls "$peer_url" &
planes+=($!)
nats-server --addr 127.0.0.1 --port "$nats_port" &
planes+=($!)
export ETCD_ENDPOINTS=$etcd_url NATS_SERVER=nats://127.0.0.1:$nats_port

# Nothing here waits for anything else: what comes too early tries again.
"$BIN/dynamo-mocker" --write-model "$folder/model"
for engine in 1 2; do
  http=$(free_port)
  "$BIN/dynamo-mocker" --http-port "$http" --events-port "$(free_port)" --replay-port "$(free_port)" --model-name demo &
  fleet+=($!)
  "$BIN/dynamo-worker" --engine "http://127.0.0.1:$http" &
  fleet+=($!)
done
for frontend in 0 1; do
  "$BIN/dynamo-frontend" --http-host 127.0.0.1 --http-port $((port + frontend)) --router-mode kv --router-replica-sync \
    --model-path "$folder/model" &
  fleet+=($!)
done
wait -n "${planes[@]}" "${fleet[@]}"
