#!/usr/bin/env bash
# Training on 2 or more real GPUs of one node: OUT=FOLDER tools/gpu/training.sh WHAT..., of:
# rates       DDP, its short form and FSDP, at level full: every limit of theirs must hold
# sound       parity, sampler, checkpoint, FSDP's variants, DDP by the number of GPUs: every limit of theirs must hold
# lora        LoRA at the size of the profile, and its other ways: every limit of theirs must hold
# fast        LoRA with ten times its learning rate: must be REJECTED, and by excess
# checkpoint  a small checkpoint that learns to call functions: every limit of lora_model must hold
# large       the same of 1.14e8 parameters, and the held-out loss before and after
# failing     a job that dies beside this one: its limits must hold, and no XID be counted
# competitor  another process takes 5 % of GPU 1's time while DDP trains: must be REJECTED and name rank 1 alone
# memory      a batch that fits no GPU: the run is INCOMPLETE, and says what to lower
. "$(dirname "$0")/planted_run.sh"
mkdir -p /tmp/checkpoints
soak=(--level=soak --soak=300 --checkpoint-dir=/tmp/checkpoints)

rates() { run rates -k "'test_ddp.py or test_ddp_short.py or test_fsdp.py'"; }

sound() { run sound "${soak[@]}" -k "'test_parity.py or test_sampler.py or test_checkpoint.py or test_fsdp_variants.py or test_ddp_scaling.py'"; }

lora() { run lora "${soak[@]}" -k "'test_lora_convergence.py or test_lora_modes.py'"; }

fast() {
    cat >/tmp/fast.yaml <<YAML
reason: "a drill: a learning rate at which nothing is learned"
parameters: {lora.learning_rate: 0.01, lora.num_steps: 30, lora.reference: none}
YAML
    run fast --limits=/tmp/fast.yaml -k test_lora_convergence.py
}

checkpoint() { tuned checkpoint 24; }

large() { tuned large 60 --width=1024 --layers=12; }

tuned() { # NAME STEPS ARGUMENTS OF make_chat_model
    local name=$1 steps=$2
    shift 2
    .venv/bin/python -m tools.make_chat_model "/tmp/$name" "$@" >"$out/make_$name.log" 2>&1
    cat >/tmp/small.yaml <<YAML
reason: "the checkpoint takes 256 tokens, and names what is asked for in words before it is fine-tuned"
parameters: {lora_model.sequence: 256, lora_model.num_new_tokens: 48, lora_model.batch_size: 8, lora_model.num_steps: $steps, lora_model.warmup_steps: 3,
             lora_model.learning_rate: 0.002}
limits:
  lora_model.held_out.loss: {at_most: 0.04, unit: nats, scope: job, source: "policy: half of what it begins with"}
  lora_model.right_arguments: {at_least: 0.8, unit: relative, scope: job, source: "policy: what this one must come to"}
YAML
    run "$name" --level=health --limits=/tmp/small.yaml --lora-model="/tmp/$name/model" --lora-data="/tmp/$name/dialogues.jsonl"
    grep -rho '[0-9.e-]* nats before, [0-9.e-]* after' "/tmp/runs-$name" --include=results.json | sort -u
}

failing() {
    .venv/bin/python tools/gpu/failure_xids.py >"$out/failure_xids.jsonl" 2>"$out/failure_xids.err"
    echo "failure_xids: $?"
    run failing "${soak[@]}" -k test_failure_propagation.py
}

competitor() {
    .venv/bin/python tools/gpu/competitor.py 1 5 150 >"$out/competitor.txt" &
    sleep 6
    run competitor --allow-busy -k test_ddp.py
    kill %1
}

memory() {
    cat >/tmp/memory.yaml <<YAML
reason: "a drill: a batch that fits no GPU must be told with what to lower"
parameters: {train.gpt2.batch_size: 4096}
YAML
    run memory --limits=/tmp/memory.yaml -k "'test_ddp.py and gpt2'"
    grep -o "out of memory: .*" "$out/memory.log" | sort -u | head -4
}

for what in "$@"; do "$what"; done
