#!/usr/bin/env bash
# A fleet on one machine, no GPU: two simulated engines with real KV events, and the frontend in front of them.
#
#   examples/fleet.sh                   listens on 8000; Ctrl-C ends everything
#   PORT=9000 examples/fleet.sh         another port; the engines use PORT+1 to PORT+6
#   BIN=target/debug examples/fleet.sh  binaries that are built already
#
# Then: examples/chat.py http://127.0.0.1:8000
set -euo pipefail
cd "$(dirname "$0")/.."
port=${PORT:-8000}
if [ -z "${BIN:-}" ]; then
  cargo build --release --locked -p dynamo-frontend -p mocker
  BIN=target/release
fi

folder=$(mktemp -d)
pids=()
finish() {
  trap - EXIT INT TERM
  kill "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT INT TERM

"$BIN/dynamo-mocker" --write-model "$folder"
workers=()
for engine in 1 2; do
  http=$((port + engine)) events=$((port + engine + 2)) replay=$((port + engine + 4))
  "$BIN/dynamo-mocker" --http-port "$http" --events-port "$events" --replay-port "$replay" --model-name demo &
  pids+=($!)
  workers+=(--worker "http://127.0.0.1:$http,id=engine-$engine")
done
"$BIN/dynamo-frontend" --http-host 127.0.0.1 --http-port "$port" --router-mode kv --model-path "$folder" "${workers[@]}" &
pids+=($!)
wait -n "${pids[@]}"
