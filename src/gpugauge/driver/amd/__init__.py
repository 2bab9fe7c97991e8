"""AMD's GPUs, by the files of amdgpu in sysfs: no library, and never /dev/kfd, which would hold the driver."""
