#!/usr/bin/env bash
# Two nodes for tests/test_real_pods.py beside the control plane of control_plane.sh, until it is interrupted: a kubelet each (1.20; its
# flags and cgroups of version 1) with containerd and runc, a bridge between their pods, and names by headless services.
# For root, in the network namespace of the plane:
#
#   ip netns add plane && nsenter --net=/run/netns/plane ip link set lo up
#   nsenter --net=/run/netns/plane tests/kubernetes/control_plane.sh BINARIES PLANE &
#   nsenter --net=/run/netns/plane tests/kubernetes/nodes.sh BINARIES PLANE FOLDER IMAGE... &       # says `ready`
#   TEST_KUBECONFIG=PLANE/kubeconfig nsenter --net=/run/netns/plane .venv/bin/python -m pytest tests/test_real_pods.py
#
# BINARIES holds kubelet. The IMAGEs are archives (`buildah push NAME docker-archive:FILE:NAME`) of docker.io/library/gpu-acceptance:0.1.0
# and of localhost/pause:1, whose entry point waits; a FOLDER that has them already needs none. No registry is asked.
# Of Debian: containerd, runc, containernetworking-plugins, dnsmasq-base, jq, socat.

set -euo pipefail

binaries=$(realpath "$1")
plane=$(realpath "$2")
mkdir -p "$3/names"
folder=$(realpath "$3")
images=("${@:4}")
cni=${CNI_BIN:-/usr/lib/cni}
controllers=(blkio cpu cpuacct cpuset devices freezer memory pids systemd)

declare -A before
for flag in vm.overcommit_memory kernel.panic kernel.panic_on_oops; do before[$flag]=$(sysctl -n "$flag"); done
children=()
end() { # what a kubelet leaves behind, and what it has set of the kernel
    kill "${children[@]}" 2>/dev/null || true
    wait
    for flag in "${!before[@]}"; do sysctl -qw "$flag=${before[$flag]}"; done
    ip link del pods0 2>/dev/null || true
    find /sys/fs/cgroup/*/acceptance-kubelet-* -depth -type d -exec rmdir {} + 2>/dev/null || true
}
trap end EXIT
trap 'exit 0' INT TERM
begin() { # LOG COMMAND...
    "${@:2}" >"$folder/$1.log" 2>&1 &
    children+=($!)
}
client() { kubectl --kubeconfig="$plane/kubeconfig" "$@"; }

ip link add name pods0 type bridge
for host in 1 2 3; do ip addr add "198.51.100.$host/24" dev pods0; done
ip link set pods0 up
ip addr replace 192.0.2.1/32 dev lo # the service of the API, in place of kube-proxy
server=$(client config view -o jsonpath='{.clusters[0].cluster.server}')
begin api socat TCP-LISTEN:443,bind=192.0.2.1,fork,reuseaddr "TCP:${server#https://}"
begin dns dnsmasq --keep-in-foreground --no-resolv --no-hosts --hostsdir="$folder/names" --listen-address=198.51.100.1 --bind-interfaces \
    --pid-file= --user=root
names() { # in place of CoreDNS: HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local, ready or not
    while sleep 1; do
        client get endpoints -A -o json | jq -r '.items[] | .metadata as $of | .subsets[]? | (.addresses // []) + (.notReadyAddresses // [])
            | .[] | select(.hostname) | "\(.ip) \(.hostname).\($of.name).\($of.namespace).svc.cluster.local"' | sort >"$folder/found" || continue
        cmp -s "$folder/found" "$folder/names/pods" || cp "$folder/found" "$folder/names/pods"
    done
}
begin names names

# A kubelet ends what runs in its cgroup and is of no pod of its own, and removes the logs of such pods: each has a part of its own of both.
node() { # NAME NUMBER
    local own=$folder/$1
    mkdir -p "$own/cni"
    for controller in "${controllers[@]}"; do mkdir -p "/sys/fs/cgroup/$controller/acceptance-$1"; done
    for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/acceptance-$1/$file"; done
    cat >"$own/cni/10-pods.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "$1", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipam": {
  "type": "host-local", "dataDir": "$own/ipam", "routes": [{"dst": "0.0.0.0/0"}],
  "ranges": [[{"subnet": "198.51.100.0/24", "gateway": "198.51.100.1",
    "rangeStart": "198.51.100.${2}0", "rangeEnd": "198.51.100.${2}9"}]]}}]}
EOF
    cat >"$own/containerd.toml" <<EOF
version = 2
root = "$own/containerd"
state = "$own/state"
[grpc]
  address = "$own/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$cni"
    conf_dir = "$own/cni"
EOF
    begin "containerd-$1" unshare --mount sh -c 'mount -t tmpfs none /var/log && mkdir /var/log/pods /var/log/containers && exec "$@"' \
        sh containerd --config "$own/containerd.toml"
    local runtime=$!
    until ctr --address "$own/containerd.sock" version >/dev/null 2>&1; do
        kill -0 "${children[@]}"
        sleep 0.2
    done
    for image in "${images[@]}"; do ctr --address "$own/containerd.sock" --namespace k8s.io images import "$image"; done
    : >"$own/resolv.conf"
    cat >"$own/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 198.51.100.$2
port: $((10250 + $2))
healthzPort: $((10350 + $2))
cgroupDriver: cgroupfs
cgroupRoot: /acceptance-$1
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {nodefs.available: 1%, imagefs.available: 1%, memory.available: 100Mi}
clusterDNS: [198.51.100.1]
clusterDomain: cluster.local
resolvConf: $own/resolv.conf
volumePluginDir: $own/plugins
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
EOF
    begin "kubelet-$1" nsenter --mount --target="$runtime" "$binaries/kubelet" \
        --config="$own/kubelet.yaml" --kubeconfig="$plane/kubeconfig" \
        --hostname-override="$1" --node-ip="198.51.100.$2" \
        --root-dir="$own/kubelet" --cert-dir="$own/pki" \
        --container-runtime=remote --container-runtime-endpoint="unix://$own/containerd.sock" \
        --node-labels=nvidia.com/gpu.present=true,kubelet=containerd
    until client wait --for=condition=Ready "node/$1" >/dev/null 2>&1; do
        kill -0 "${children[@]}"
        sleep 0.2
    done
}
node kubelet-a 2
node kubelet-b 3
echo ready
wait -n
