#!/usr/bin/env bash
# Whole runs on 2 real GPUs of one node: OUT=FOLDER tools/gpu/whole_runs.sh WHAT..., of:
# full      sound, level full: ACCEPTED, with the seconds of each phase
# quick     sound, level quick: ACCEPTED
# no-p2p    NCCL may not copy between the GPUs: REJECTED by its transport, before anything large moves
# sockets   nor through memory that both processes share: REJECTED likewise
# foreign   another process computes on GPU 0 from second 25 for 25 s: what it disturbs is repeated once it has gone: ACCEPTED
# compiler  no C compiler: INCOMPLETE, and the subjects that need none are judged
# slowed    GPU 1 is slower by work of its own rank: REJECTED, and names rank 1 alone
. "$(dirname "$0")/planted_run.sh"

full() { run full --level=full; }
quick() { run quick --level=quick; }
no-p2p() { NCCL_P2P_DISABLE=1 run no-p2p --level=quick; }
sockets() { NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 run sockets --level=quick; }
compiler() { CC=/nonexistent run compiler --level=full -k "'test_hbm.py or test_ddp.py or test_ddp_short.py or test_fsdp.py'"; }
slowed() { PYTHONPATH=$PWD/tools/gpu/planted:${PYTHONPATH:-} PLANTED=slow:1:15 run slowed --level=quick; }

foreign() {
    (sleep 25 && .venv/bin/python tools/gpu/competitor.py 0 10 25 >"$out/competitor.txt") &
    run foreign --level=quick
    wait
}

for what in "$@"; do "$what"; done
