#!/bin/sh
# Slurm's HealthCheckProgram, run as root: drains the node when one of its GPUs needs a reset or a repair, with the fault
# as the reason. It drains for nothing else, and never resumes a node. Slurm passes on nothing of the environment of
# slurmd, so the settings are in /etc/gpugauge/slurm.env (docs/node-check.md). What it does, and why it cannot judge, is
# in the log of the system, as gpugauge-check. With --dry-run it drains nothing, and exits with 1 where it would.
export PATH="${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin:/usr/local/slurm/bin"
node=${SLURMD_NODENAME:-$(hostname -s)} line='
'

say() {
  echo "$*"
  logger -t gpugauge-check -- "$*" 2>/dev/null
}

# Without a judgement the node stays as it is: a monitor that fails is no reason to lose it.
unknown() {
  say "cannot judge the GPUs of $node: $*"
  exit 0
}

settings=${GPUGAUGE_SLURM_ENV:-/etc/gpugauge/slurm.env}
if [ -e "$settings" ]; then
  wrong=$(sh -n "$settings" 2>&1) || unknown "$wrong"
  set -a
  . "$settings"
  set +a
fi
for name in gpugauge scontrol; do
  command -v "$name" >/dev/null || unknown "no $name in $PATH"
done

# An answer without a fault needs no Python, whose start takes most of the time. All else is for our own command.
calm() {
  reply=$(curl -sf -m 10 --noproxy '*' --anyauth --netrc-optional "$1/api/v1/status" 2>/dev/null) || return 1
  case $reply in
    *'"action":"'[a-z]* | *'"kind":"driver"'* | *'"kind":"no_gpu"'* | *'"kind":"gpu_down"'*) return 1 ;;
    *'"driver":{"up":true,'*) return 0 ;;
  esac
  return 1
}

broken() {
  calm "${NODE_CHECK_URL:-127.0.0.1:10478}" && return 1
  set -- status --fail-on repair --reason --url "${NODE_CHECK_URL:-127.0.0.1}"
  found=$(timeout -k 1 10 gpugauge "$@" 2>&1)
  case $?.$found in
    0.*) return 1 ;;
    1.GPU*"$line"* | 1.Driver*"$line"*) ;; # a traceback
    1.GPU* | 1.Driver*) return 0 ;;
    2.) found="the driver is being opened or released" ;;
    124.* | 137.*) found="no answer within 10 s" ;;
  esac
  found=${found##*"$line"}
  unknown "${found:-gpugauge says nothing}"
}

# A driver may hang for a moment, so the second answer decides. Slurm ends a health check after 60 seconds.
broken && sleep "${NODE_CHECK_PAUSE:-15}" && broken || exit 0
reason="$found (gpugauge)"
if [ "$1" = --dry-run ]; then
  say "would drain $node: $reason"
  exit 1
fi
# The reason of a node that is drained already, with its time, stays.
timeout -k 1 10 scontrol --oneliner show node "$node" | grep -q ' State=[^ ]*DRAIN' && exit 0
said=$(timeout -k 1 10 scontrol update "NodeName=$node" State=DRAIN "Reason=$reason" 2>&1) &&
  say "drained $node: $reason" || say "cannot drain $node: $said"
exit 0
