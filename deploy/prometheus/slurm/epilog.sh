#!/bin/sh
# Slurm epilog, run as root on each node of a job: the devices are free again. Removes only files that name this job.
folder=${GPUGAUGE_JOBS:-/run/gpugauge-jobs}

for file in "$folder"/*; do
  [ -f "$file" ] && read -r job _ <"$file" && [ "$job" = "$SLURM_JOB_ID" ] && rm -f "$file"
done
exit 0
