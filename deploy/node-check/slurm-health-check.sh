#!/bin/sh
# Slurm's HealthCheckProgram, run as root: drains the node when one of its GPUs needs a reset or a repair, with the
# answer of gpugauge as the reason. It drains for nothing else, and never resumes a node. It always exits with 0, because
# slurmd does not register before its health check does.
PATH=${PATH:+$PATH:}/usr/sbin:/usr/bin:/sbin:/bin
node=${SLURMD_NODENAME:-$(hostname -s)}

# A command that fails prints nothing.
broken() {
  set -- status --fail-on repair --url "${NODE_CHECK_URL:-127.0.0.1}"
  answer=$(COLUMNS=400 timeout -k 1 10 gpugauge "$@" 2>/dev/null)
  [ $? = 1 ] && [ -n "$answer" ]
}

# A driver may hang for a moment, so the second answer decides. Slurm ends a health check after 60 seconds.
broken && sleep "${NODE_CHECK_PAUSE:-15}" && broken || exit 0
answer=$(printf '%s\n' "$answer" | grep -v '^SIMULATED' | head -n 1)
# The reason of a node that is drained already, with its time, stays.
timeout -k 1 10 scontrol --oneliner show node "$node" | grep -q ' State=[^ ]*DRAIN' ||
  timeout -k 1 10 scontrol update "NodeName=$node" State=DRAIN "Reason=gpugauge: $answer"
exit 0
