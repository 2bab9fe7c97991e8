#!/bin/sh
# Slurm prolog, run as root on each node of a job: records for gpugauge which devices the job was given, in the layout
# that dcgm-exporter reads with --hpc-job-mapping-dir. In gpugauge, set slurm.job_mapping_dir=/run/gpugauge-jobs
# The indices must be those of the machine: SLURM_JOB_GPUS. CUDA_VISIBLE_DEVICES is counted from 0 inside a cgroup.
folder=${GPUGAUGE_JOBS:-/run/gpugauge-jobs}
devices=${SLURM_JOB_GPUS:-${SLURM_STEP_GPUS:-}}

# A failing prolog drains the node, so errors here are ignored.
mkdir -p "$folder" && chmod 755 "$folder" || exit 0
for device in $(echo "$devices" | tr ',' ' '); do
  # Atomic: written to a temporary file, then renamed.
  echo "$SLURM_JOB_ID $SLURM_JOB_UID" >"$folder/.$device" && chmod 644 "$folder/.$device" &&
    mv "$folder/.$device" "$folder/$device"
done
exit 0
