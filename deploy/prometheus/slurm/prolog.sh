#!/bin/sh
# Slurm prolog, run as root on each node of a job: records for gpugauge which devices the job was given. In gpugauge, set
# slurm.job_mapping_dir=/run/gpugauge-jobs
# There is one file for each device, with a line `JOB UID [SLUID]` for each job that has it. Its name is the uuid, or
# where the driver does not tell it, the PCI address, or the device file: an index shifts when a GPU is lost.
export PATH="${PATH:+$PATH:}/usr/sbin:/usr/bin:/sbin:/bin"
folder=${GPUGAUGE_JOBS:-/run/gpugauge-jobs}
gpus=${GPUGAUGE_PROC:-/proc}/driver/nvidia/gpus
# The numbers of device files: CUDA_VISIBLE_DEVICES is counted from 0 inside a cgroup. Those of AMD's renderD128 and so
# on may be counted from 0, too.
devices=${SLURM_JOB_GPUS:-${SLURM_STEP_GPUS:-}}

# Prints what the driver says about each GPU as lines `ADDRESS MINOR UUID`.
list() {
  if [ -d "$gpus" ]; then
    for gpu in "$gpus"/*; do
      uuid=- minor=-
      while IFS=':	 ' read -r one two value _; do
        case "$one $two" in "GPU UUID") uuid=$value ;; "Device Minor") minor=$value ;; esac
      done <"$gpu/information"
      echo "${gpu##*/} $minor $uuid"
    done
  else
    address=- uuid=-
    timeout -k 1 10 nvidia-smi -q | while read -r one two three four _; do
      case "$one $two" in
        "GPU "*:*:*.*) address=$two ;;
        "GPU UUID") uuid=$four ;;
        "Minor Number") echo "$address $four $uuid" ;;
      esac
    done
  fi 2>/dev/null
  place=0
  for node in "${GPUGAUGE_SYS:-/sys}"/class/drm/renderD*; do
    [ "$(cat "$node/device/vendor" 2>/dev/null)" = 0x1002 ] || continue
    device=$(readlink -f "$node/device")
    echo "${device##*/} ${node##*renderD} -"
    echo "${device##*/} $place -"
    place=$((place + 1))
  done
}

name() {
  case $1 in *[!0-9]*) echo "$1" && return ;; esac
  echo "$known" | while read -r address minor uuid; do
    [ "$minor" = "$1" ] || continue
    case $uuid in GPU-*\?* | -) echo "$address" ;; *) echo "$uuid" ;; esac
    break
  done | grep . || echo "nvidia$1"
}

# A failing prolog drains the node, so errors here are ignored.
mkdir -p "$folder" && chmod 755 "$folder" || exit 0
known=$(list)
(
  flock -w 10 9
  for device in $(echo "$devices" | tr ',' ' '); do
    file=$(name "$device")
    # Atomic: written to a temporary file, then renamed.
    {
      grep -sv "^$SLURM_JOB_ID\( \|$\)" "$folder/$file"
      echo "$SLURM_JOB_ID $SLURM_JOB_UID${SLURM_JOB_SLUID:+ $SLURM_JOB_SLUID}"
    } >"$folder/.$file" && chmod 644 "$folder/.$file" && mv "$folder/.$file" "$folder/$file"
  done
) 9>"$folder/.lock"
exit 0
