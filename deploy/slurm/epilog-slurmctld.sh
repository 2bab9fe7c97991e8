#!/bin/sh
# EpilogSlurmctld of slurm.conf, run on the controller after each job: writes what the job used of its GPUs into its
# AdminComment, as Jobstats does. Slurm passes on nothing of the environment of slurmctld, so the settings are in
# /etc/gpugauge/slurm.env (docs/report.md). What fails is in the log of the system, as gpugauge-epilog.
export PATH="${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin:/usr/local/slurm/bin"

# The job is not held up: the work is done later, after the last scrape. Slurm kills the process group of a script that
# has ended, so it is done in a session of its own; the output of `setsid` closes when that exists.
if [ "$1" != later ]; then
  : "$(setsid sh "$0" later &)"
  exit 0
fi
exec </dev/null >/dev/null 2>&1

settings=${GPUGAUGE_SLURM_ENV:-/etc/gpugauge/slurm.env}
if [ -r "$settings" ] && sh -n "$settings"; then
  set -a
  . "$settings"
  set +a
fi
export PROMETHEUS_URL="${PROMETHEUS_URL:-http://127.0.0.1:9090}"

# A task of an array has its own number in series and another name in the accounting; a part of a heterogeneous job has
# its number in the accounting, and that of the first part in series.
record=$SLURM_JOB_ID
if [ -n "$SLURM_ARRAY_JOB_ID" ]; then record=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
job=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}

# Prints why it failed.
write() {
  sleep "${GPUGAUGE_EPILOG_DELAY:-60}"
  # A requeued job has the number of its earlier runs.
  since=30d
  case $SLURM_JOB_START_TIME in
    "" | *[!0-9]* | 0) ;;
    *) since=$(($(date +%s) - SLURM_JOB_START_TIME))s ;;
  esac
  comment=$(gpugauge report --slurm "$job" --since "$since" --format jobstats) || return
  said=$(sacctmgr -i update job where jobid="$record" set AdminComment="$comment" 2>&1) || echo "sacctmgr: $said"
}
write 2>&1 | sed "s/^/job $record: /" | logger -t gpugauge-epilog
