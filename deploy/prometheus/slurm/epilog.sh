#!/bin/sh
# Slurm epilog, run as root on each node of a job: removes the lines of this job, and files without another job.
export PATH="${PATH:+$PATH:}/usr/sbin:/usr/bin:/sbin:/bin"
folder=${GPUGAUGE_JOBS:-/run/gpugauge-jobs}

[ -d "$folder" ] || exit 0
(
  flock -w 10 9
  for file in "$folder"/*; do
    grep -qs "^$SLURM_JOB_ID\( \|$\)" "$file" || continue
    temporary=$folder/.${file##*/}
    if grep -v "^$SLURM_JOB_ID\( \|$\)" "$file" >"$temporary"; then
      # The time of a file tells which GPU an index means, so it stays.
      chmod 644 "$temporary" && touch -r "$file" "$temporary" && mv "$temporary" "$file"
    else
      rm -f "$temporary" "$file"
    fi
  done
) 9>"$folder/.lock"
exit 0
