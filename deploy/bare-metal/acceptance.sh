#!/usr/bin/env bash
# One acceptance of a list of hosts over your own ssh: one torchrun on each host, one rank for each of its GPUs.
#
#   deploy/bare-metal/acceptance.sh HOSTS [OPTION...]
#
# HOSTS is a file with one host a line, as ssh knows them; rank 0, the report and the verdict are on the first. All have this checkout at the same
# path. OPTIONs go on to the suite (--limits=FILE, --level=quick, ...). Ends with the verdict's own exit code: 0 ACCEPTED, 1 REJECTED,
# 6 INCOMPLETE, 2 interrupted, 4 usage; 3 where the first host does not say it.
# From the environment: PYTHON (.venv/bin/python of the checkout), REPORTS (its reports/), RANKS (GPUs of the first host, else 2), SSH (ssh -o
# BatchMode=yes), MASTER_ADDR (the first host, as the others reach it), MASTER_PORT (29500), JOIN_TIMEOUT (60s, how long hosts and ranks wait for
# each other), GRACE (120 s that the others have once one has ended). Variables of NCCL, gloo, CUDA and OpenMP that are set here are set on every host.

set -uo pipefail

fail() {
    echo "$1" >&2
    exit "${2:-4}"
}

[ $# -ge 1 ] || fail "usage: $0 HOSTS [OPTION...]: HOSTS is a file with one host a line"
file=$1
shift
[ -r "$file" ] || fail "$file: no such file; HOSTS is a file with one host a line"
mapfile -t hosts < <(sed -E 's/#.*//; s/^[[:space:]]+//; s/[[:space:]]+$//; /^$/d' "$file")
[ ${#hosts[@]} -ge 1 ] || fail "$file: no host in it; one a line"
for host in "${hosts[@]}"; do
    [[ $host =~ ^[A-Za-z0-9_][A-Za-z0-9_.@:-]*$ ]] || fail "$file: '$host' is no host as ssh takes it; one a line"
done
twice=$(printf '%s\n' "${hosts[@]}" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || fail "$file: $twice is there twice"
for option in "$@"; do
    case $option in
    --run-id* | --report-dir* | --plan* | --collect-only* | --co) fail "$option is not for $0, which names its run and judges it: REPORTS=DIR is the folder of all runs" ;;
    esac
done
port=${MASTER_PORT:-29500}
[[ $port =~ ^[0-9]+$ && $port -ge 1 && $port -le 65535 ]] || fail "MASTER_PORT=$port: a port is from 1 to 65535"
grace=${GRACE:-120}
[[ $grace =~ ^[0-9]+$ ]] || fail "GRACE=$grace: wants whole seconds"

read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes}"
first=${hosts[0]}
python=${PYTHON:-$PWD/.venv/bin/python}
reports=${REPORTS:-$PWD/reports}
run_id=hosts-$(date -u +%Y%m%d-%H%M%S)-$$
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

quoted() { printf '%q ' "$@"; }
here="cd $(quoted "$PWD")&& "

# Every host is asked first: whether it answers, and whether it has the same suite, Python and torch. A run that began without would fail late.
# The last line is the answer: before it a shell over there may greet.
same='import sys, pathlib, torch, gpu_acceptance.run.suite as d; '
same+='print(d.suite_digest(pathlib.Path.cwd()), "Python", sys.version.split()[0], "torch", torch.__version__)'
for index in "${!hosts[@]}"; do
    "${ssh[@]}" "${hosts[index]}" "$here PYTHONPATH=src $(quoted "$python" -c "$same")" >"$scratch/$index" 2>"$scratch/$index.error" </dev/null &
    asked[index]=$!
done
for index in "${!hosts[@]}"; do
    wait "${asked[index]}" || fail "${hosts[index]} cannot take part: $(tail -n 1 "$scratch/$index.error")"
done
for index in "${!hosts[@]}"; do
    has[index]=$(tail -n 1 "$scratch/$index")
    [ "${has[0]}" = "${has[index]}" ] || fail "$first has    ${has[0]}
${hosts[index]} has    ${has[index]}
the checkout and its Python must be the same on every host"
done
ranks=${RANKS:-$("${ssh[@]}" "$first" "$here $(quoted "$python" -c 'import torch; print(torch.cuda.device_count() or 2)')" </dev/null | tail -n 1)}
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "RANKS=$ranks: wants the number of ranks of each host"

# Nor would torchrun say within ten minutes that an address leads elsewhere, or ever that something else has the port. The first host knows most.
address=${MASTER_ADDR:-${first##*@}}
patience=${JOIN_TIMEOUT:-60s}
for index in "${!hosts[@]}"; do
    command=("$python" -m gpu_acceptance meet "$address:$port" --nodes="${#hosts[@]}" --node="$index" --run="$run_id" --timeout="$patience")
    said=/dev/stderr
    [ "$index" = 0 ] || said=$scratch/$index.met
    "${ssh[@]}" -tt "${hosts[index]}" "$here PYTHONPATH=src exec $(quoted "${command[@]}")" >"$said" 2>&1 </dev/null &
    meeting[index]=$!
done
code=0 told=
for index in "${!hosts[@]}"; do
    [ "$code" != 4 ] || kill -TERM "${meeting[index]}" 2>/dev/null # a mistake of the start: the others would wait for nothing
    wait "${meeting[index]}"
    ended=$?
    if [ "$ended" = 0 ] || [ "$code" = 4 ]; then continue; fi
    code=$ended
    [ "$index" != 0 ] || continue # its terminal is ours
    line=$(tail -n 1 "$scratch/$index.met")
    [ "$line" = "$told" ] || echo "${hosts[index]}: $line" >&2
    told=$line
done
case $code in
0) ;;
6) exit 6 ;;
*) exit 4 ;;
esac
# What `meet` has taken is a number with s, m or h.
seconds=${patience%s} seconds=${seconds/%m/*60} seconds=$((10#${seconds/%h/*3600}))

# The secret of this run, by which ranks of all hosts know each other's messages: over standard input into a file that only this user reads, since
# every user of a host sees its command lines. noclobber: nobody else made that file.
key=${GPU_ACCEPTANCE_KEY:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
key_file=/tmp/gpu-acceptance-$run_id # and the number of the host: two of the list may be one machine
handed=()
for index in "${!hosts[@]}"; do
    "${ssh[@]}" "${hosts[index]}" "exec bash -c $(quoted "umask 077; set -o noclobber; cat >$key_file-$index.key")" <<<"$key" &
    handed[index]=$!
done
for index in "${!hosts[@]}"; do
    wait "${handed[index]}" || fail "${hosts[index]} does not take the key of this run: $key_file-$index.key cannot be made there"
done

settings=()
while IFS= read -r name; do settings+=("$name=${!name}"); done < <(compgen -e | grep -E '^(NCCL|GLOO|CUDA|OMP|UCX|FI|TORCH_NCCL)_')
# -tt: where this end goes, torchrun over there is hung up, and ends its ranks.
for index in "${!hosts[@]}"; do
    command=(env "${settings[@]}" "$python" -m torch.distributed.run --max-restarts=0 --nnodes="${#hosts[@]}" --node-rank="$index"
        --nproc-per-node="$ranks" --master-addr="$address" --master-port="$port" --rdzv-conf="timeout=$seconds"
        -m pytest acceptance/ --report-dir="$reports" --run-id="$run_id" --join-timeout="$patience" "$@")
    said=/dev/stdout
    [ "$index" = 0 ] || said=$scratch/$index.said
    read_key="GPU_ACCEPTANCE_KEY=\$(cat $key_file-$index.key)&& export GPU_ACCEPTANCE_KEY&& rm -f $key_file-$index.key&& "
    "${ssh[@]}" -tt "${hosts[index]}" "$here $read_key exec $(quoted "${command[@]}")" >"$said" 2>&1 </dev/null &
    launched[index]=$!
done
trap 'kill -TERM "${launched[@]}" 2>/dev/null' TERM INT HUP

# Each host ends by itself once the run is over, or its ranks have heard of a loss: GRACE is for the one that does neither.
wait -n "${launched[@]}"
for ((waited = 0; waited < grace; waited++)); do
    [ -n "$(jobs -rp)" ] || break
    sleep 1
done
for index in "${!hosts[@]}"; do
    if kill -TERM "${launched[index]}" 2>/dev/null; then echo "${hosts[index]} had not ended $grace s after the first host that did: hung up" >&2; fi
    wait "${launched[index]}" || [ "$index" = 0 ] || sed "s/^/${hosts[index]}: /" "$scratch/$index.said" | tail -n 20 >&2
done

"${ssh[@]}" "$first" "$here if [ -d $(quoted "$reports/$run_id")]; then PYTHONPATH=src exec $(quoted "$python" -m gpu_acceptance verdict "$reports/$run_id"); \
else echo $(quoted "no run in $reports/$run_id: see the error above")>&2; exit 4; fi" </dev/null
code=$?
[ $code -ne 255 ] || fail "$first does not answer any more: no verdict" 3
exit $code
