#!/bin/sh
# Slurm prolog, as root on each node of a job: tells gpugauge which devices the job was given, in the layout that
# dcgm-exporter reads with --hpc-job-mapping-dir. gpugauge: slurm.job_mapping_dir=/run/gpugauge-jobs
# The numbers must be those of the machine: SLURM_JOB_GPUS, not CUDA_VISIBLE_DEVICES, which cgroups count from 0.
folder=${GPUGAUGE_JOBS:-/run/gpugauge-jobs}
devices=${SLURM_JOB_GPUS:-${SLURM_STEP_GPUS:-}}

# A prolog that fails drains the node, so what is told here is best effort.
mkdir -p "$folder" && chmod 755 "$folder" || exit 0
for device in $(echo "$devices" | tr ',' ' '); do
  # Whole or not at all: written beside it, then renamed.
  echo "$SLURM_JOB_ID $SLURM_JOB_UID" >"$folder/.$device" && chmod 644 "$folder/.$device" &&
    mv "$folder/.$device" "$folder/$device"
done
exit 0
