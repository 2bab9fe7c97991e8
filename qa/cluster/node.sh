#!/usr/bin/env bash
# A node: containerd and kubelet in namespaces of their own, as pid 1 of `unshare`. It has its own /run, kubelet folder
# and logs, so that two nodes share nothing but the kernel. node.sh NAME NUMBER FOLDER; the variables are in cluster.py.
set -euo pipefail
name=$1 number=$2 folder=$3
address=10.99.0.1$number

# The control plane moves the interface here.
for _ in $(seq 100); do ip link show "node$number" >/dev/null 2>&1 && break; sleep 0.1; done
ip link set lo up
ip addr add "$address/24" dev "node$number"
ip link set "node$number" up
ip route add default via 10.99.0.1
for other in 1 2; do
  [ "$other" = "$number" ] || ip route add "10.244.$other.0/24" via "10.99.0.1$other"
done
echo 1 >/proc/sys/net/ipv4/ip_forward

mount --make-rshared /
mount -t tmpfs tmpfs /run
for place in /var/lib/kubelet /var/log/pods /var/log/containers /var/lib/gpugauge /etc/cdi; do
  mkdir -p "$place" "$folder$place"
  mount --bind "$folder$place" "$place"
done
# A cgroup for its pods, where there is no systemd to make one.
for controller in /sys/fs/cgroup/*/; do
  parent=$controller
  for part in gpugauge-cluster "$name"; do
    mkdir -p "$parent$part" 2>/dev/null || continue 2
    for file in cpuset.cpus cpuset.mems; do
      [ ! -e "$parent$file" ] || cat "$parent$file" >"$parent$part/$file"
    done
    parent=$parent$part/
  done
done

mkdir -p /run/cni "$folder/containerd"
cat >/run/cni/10-bridge.conflist <<K
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "/run/cni/addresses", "ranges": [[{"subnet": "10.244.$number.0/24"}]],
    "routes": [{"dst": "0.0.0.0/0"}]}}]}
K
runtime() {
  cat <<K
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.$1]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.$1.options]
    BinaryName = "$(command -v runc)"
    SystemdCgroup = false
K
}
cat >/run/containerd.toml <<K
version = 2
root = "$folder/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/run/cni"
$(runtime runc)
$(runtime nvidia)
K
cat >/run/kubelet.yaml <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# Short times, so that it is soon known that the API server is away.
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true, cacheTTL: 1s}
  x509: {clientCAFile: "$PKI/ca.pem"}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s}}
tlsCertFile: $PKI/$name.pem
tlsPrivateKeyFile: $PKI/$name.key
cgroupDriver: cgroupfs
cgroupRoot: /gpugauge-cluster/$name
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 2s
registerNode: true
K
containerd --config /run/containerd.toml &>"$folder/containerd.log" &
for _ in $(seq 100); do ctr --address /run/containerd/containerd.sock version &>/dev/null && break; sleep 0.1; done
for image in "$IMAGES"/*.tar; do
  ctr --address /run/containerd/containerd.sock --namespace k8s.io images import "$image" &>>"$folder/images.log"
done
# shellcheck disable=SC2086 # options of this version of the kubelet
"$PYTHON" -m qa.cluster.gpus "$name" &>"$folder/gpus.log" &
"$BIN/kubelet" --config=/run/kubelet.yaml --kubeconfig="$KUBECONFIGS/$name" --hostname-override="$name" \
  --node-ip="$address" --container-runtime-endpoint=unix:///run/containerd/containerd.sock $KUBELET_OPTIONS \
  &>"$folder/kubelet.log" &
wait
