#!/bin/bash
# Plugin of the node-problem-detector: prints one line, and exits with 1 if a GPU needs a reset or a repair, with 0 if
# none does, with 2 if that is not known. It needs bash alone: the image of the detector has no HTTP client.
host=${NODE_CHECK_HOST:-127.0.0.1} port=${NODE_CHECK_PORT:-10478}

finish() {
  echo "$2"
  exit "$1"
}

{ exec 3<>"/dev/tcp/$host/$port"; } 2>/dev/null || finish 2 "gpugauge does not answer on $host:$port"
printf 'GET /api/v1/status HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" >&3
IFS= read -r -d '' reply <&3  # until the end: the reply has no NUL
[[ $reply =~ ^HTTP/1\.[01]\ 200\  ]] || finish 2 "gpugauge has no status: ${reply%%$'\r'*}"
[[ $reply =~ \"answer\":\"([^\"]*)\" ]] || finish 2 "gpugauge sends no status"
answer=${BASH_REMATCH[1]}
broken='"kind":"(driver|no_gpu|gpu_down)","grave":true|"action":"(drain|reset)"'
[[ ! $reply =~ $broken ]] || finish 1 "$answer"
finish 0 "no GPU needs a reset or a repair"
