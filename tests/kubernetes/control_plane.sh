#!/usr/bin/env bash
# A control plane of Kubernetes on 127.0.0.1 for tests/test_real_kubernetes.py, until it is interrupted.
#
#   tests/kubernetes/control_plane.sh BINARIES FOLDER [PORT]
#
# BINARIES holds etcd, kube-apiserver, kube-scheduler and kube-controller-manager, and may hold kubemark: a kubelet over a container runtime
# that only says that it runs something. FOLDER gets certificates, logs, the data and `kubeconfig`.

set -euo pipefail

binaries=$(realpath "$1")
mkdir -p "$2"
cd "$2"
port=${3:-6443}
server=https://127.0.0.1:$port

certificate() { # NAME SUBJECT [SUBJECTALTNAME]: by the authority
    openssl req -new -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
        -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}") 2>/dev/null
}

kubeconfig() { # NAME: of its certificate
    cat >"$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
clusters: [{name: plane, cluster: {server: "$server", certificate-authority: $PWD/ca.crt}}]
users: [{name: "$1", user: {client-certificate: $PWD/$1.crt, client-key: $PWD/$1.key}}]
contexts: [{name: plane, context: {cluster: plane, user: "$1"}}]
current-context: plane
EOF
}

openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=plane 2>/dev/null
certificate server /CN=kube-apiserver IP:127.0.0.1,IP:192.0.2.1,DNS:kubernetes.default.svc
certificate admin /O=system:masters/CN=admin
certificate scheduler /CN=system:kube-scheduler
certificate manager /CN=system:kube-controller-manager
openssl genrsa -out account.key 2048 2>/dev/null
for name in admin scheduler manager; do kubeconfig "$name"; done

children=()
trap 'kill "${children[@]}" 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM
begin() { # NAME ARGUMENT...: of the folder of binaries, into its own log
    "$binaries/$1" "${@:2}" >"$1.log" 2>&1 &
    children+=($!)
}
begin etcd --data-dir=data --listen-client-urls="http://127.0.0.1:$((port + 1))" --advertise-client-urls="http://127.0.0.1:$((port + 1))" \
    --listen-peer-urls="http://127.0.0.1:$((port + 2))" --initial-advertise-peer-urls="http://127.0.0.1:$((port + 2))" \
    --initial-cluster="default=http://127.0.0.1:$((port + 2))" --unsafe-no-fsync
begin kube-apiserver --etcd-servers="http://127.0.0.1:$((port + 1))" --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
    --endpoint-reconciler-type=none --kubelet-preferred-address-types=InternalIP --secure-port="$port" --tls-cert-file=server.crt --tls-private-key-file=server.key \
    --client-ca-file=ca.crt --authorization-mode=Node,RBAC --service-cluster-ip-range=192.0.2.0/24 \
    --service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file=account.key --service-account-key-file=account.key
until kubectl --kubeconfig admin.kubeconfig get --raw /readyz >/dev/null 2>&1; do
    kill -0 "${children[@]}"
    sleep 0.2
done
client() { # PROGRAM NAME ARGUMENT...
    local unsafe=() # up to 1.22 it serves without TLS as well, on all addresses
    if grep -q -- ' --port int' <("$binaries/$1" --help); then unsafe=(--port=0); fi
    begin "$1" --kubeconfig="$2.kubeconfig" --bind-address=127.0.0.1 --secure-port=0 --leader-elect=false "${unsafe[@]}" "${@:3}"
}
client kube-scheduler scheduler
client kube-controller-manager manager --use-service-account-credentials=true --service-account-private-key-file=account.key --root-ca-file=ca.crt
if [ -x "$binaries/kubemark" ]; then
    begin kubemark --morph=kubelet --name=hollow --kubeconfig=admin.kubeconfig --kubelet-port="$((port + 3))" --kubelet-read-only-port="$((port + 4))" \
        --node-labels=kubelet=hollow
    until kubectl --kubeconfig admin.kubeconfig wait --for=condition=Ready node/hollow >/dev/null 2>&1; do
        kill -0 "${children[@]}"
        sleep 0.2
    done
fi
cp admin.kubeconfig kubeconfig # last: it is there once the plane is
echo "$PWD/kubeconfig"
wait -n
