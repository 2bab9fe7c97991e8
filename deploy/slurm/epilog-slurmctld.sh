#!/bin/sh
# EpilogSlurmctld of slurm.conf, run on the controller after each job: writes what the job used of its GPUs into its
# AdminComment, as Jobstats does. Set the address of Prometheus; a login is read from ~/.netrc of SlurmUser.
# The job is not held up: all happens in the background, after the last scrape.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin
export PROMETHEUS_URL="${PROMETHEUS_URL:-http://127.0.0.1:9090}"

# A task of an array has its own number in series and another name in the accounting; a part of a heterogeneous job has
# its number in the accounting, and that of the first part in series.
record=$SLURM_JOB_ID
if [ -n "$SLURM_ARRAY_JOB_ID" ]; then record=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
job=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}

(
  sleep "${GPUGAUGE_EPILOG_DELAY:-60}"
  # A requeued job has the number of its earlier runs.
  since=30d
  case $SLURM_JOB_START_TIME in
    "" | *[!0-9]* | 0) ;;
    *) since=$(($(date +%s) - SLURM_JOB_START_TIME))s ;;
  esac
  comment=$(gpugauge report --slurm "$job" --since "$since" --format jobstats) || exit 1
  sacctmgr -i update job where jobid="$record" set AdminComment="$comment"
) >"${GPUGAUGE_EPILOG_LOG:-/dev/null}" 2>&1 &
exit 0
