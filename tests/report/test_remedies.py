"""Remedies: each kind of failure has one, a record shows its kind, and the commands have the names of the culprit."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.needs import KNOWN
from gpu_acceptance.inventory.xids import labels_of, meaning_of, meanings
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.record.row import Attempt, Judgement, LastCollective
from gpu_acceptance.report.remedies import (
    PLACEHOLDERS,
    REMEDIES_FILE,
    XID_METRICS,
    kinds_by,
    kinds_of_judgement,
    kinds_of_metric,
    kinds_of_rank,
    read_table,
    table,
)
from gpu_acceptance.report.words import HARMLESS_OUTCOMES, HARMLESS_STATUSES
from gpu_acceptance.thresholds.fabrics import fabrics
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.limit import matching_reason
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from gpu_acceptance.verdict.judge import judge
from tests.judging import make_job, make_limit, make_profile, shipped_profile
from tests.report import sample_rows

ROOT = Path(__file__).parents[2]
PROFILES = ["base", *profile_names(shipped_dir())]
OVERLAYS = sorted(shipped_dir().glob("site-*.yaml"))
METRICS = sorted(
    {metric for name in PROFILES for metric in shipped_profile(name).limits}
    | {metric for fabric in fabrics(shipped_dir()) for metric in shipped_profile("base", fabric).limits}
    | {metric for path in OVERLAYS for metric in re.findall(r"^  ([a-z]\w*\.[\w.]+):$", path.read_text(encoding="utf-8"), re.MULTILINE)}
)
PLACEHOLDER = re.compile(r"<([A-Z]+)>")
# What changes something, wherever in a command it stands.
CHANGES = re.compile(
    r"--gpu-reset|nvidia-smi (?!nvlink|topo)([^|;]* )?-(r|pm|pl|mig|e|c|rgc|lgc|rmc|rac|ac)\b|\breboot\b|power (cycle|off|on|reset)"
    r"|(?<!-)\b(kill|pkill|killall|rm|mv|tee|modprobe|rmmod|insmod|setpci|sysctl|mkdir|chmod|chown|shutdown)\b|sed -i|>"
    r"|systemctl (start|stop|restart|enable|disable)|scontrol (update|reboot|requeue|cancel)|\bscancel\b"
    r"|kubectl (delete|drain|cordon|uncordon|apply|edit|patch|taint|label|scale)|pip (install|uninstall)"
    r"|perfquery.* -[rR]\b|ibportstate|mlxlink.* (-a|--port_state)\b"
)


def commands():
    found = table()
    for kind, remedy in found.remedies.items():
        yield from ((kind, command) for command in remedy.checks)
    for name, severity in found.severities.items():
        yield from ((name, command) for command in severity.commands)


# --- nothing is without an entry ----------------------------------------------------------------------------------------------


def test_each_metric_that_a_shipped_file_limits_is_of_one_kind_and_each_glob_over_metrics_names_one():
    assert len(METRICS) > 390
    assert {"nccl.transport.internode", "environment.gpu.name", *XID_METRICS} <= set(METRICS)
    kinds = {metric: kinds_of_metric(metric) for metric in METRICS}
    assert {metric for metric, found in kinds.items() if len(found) != 1} == XID_METRICS
    assert {metric for metric, found in kinds.items() if not found} == XID_METRICS
    assert {kind for kind, remedy in table().remedies.items() if remedy.found_by.metrics} == {
        kind for found in kinds.values() for kind in found
    }


WORDS = {
    "xids": {*(meaning.remedy for meaning in meanings().values()), "contact the vendor's support"},  # of a number without a meaning
    "outcomes": set(Outcome) - HARMLESS_OUTCOMES,
    "statuses": set(Status) - HARMLESS_STATUSES,
    "causes": set(Cause),
    "lacks": set(KNOWN),
}


@pytest.mark.parametrize("field", WORDS)
def test_each_word_for_a_failure_is_of_one_kind_and_a_pass_of_none(field):
    assert {word for word in WORDS[field] if len(kinds_by(field, [word])) != 1} == set()
    assert kinds_by("outcomes", HARMLESS_OUTCOMES) == kinds_by("statuses", HARMLESS_STATUSES) == ()


def test_states_outcomes_and_xids_are_written_as_the_code_has_them():
    known = {*KNOWN, *Outcome, *Status, *(meaning.remedy for meaning in meanings().values())}
    found = [remedy.found_by for remedy in table().remedies.values()]
    assert [word for by in found for word in (*by.statuses, *by.outcomes, *by.xids, *by.lacks) if word not in known] == []


SAID = """
NVRM: GPU at PCI:0000:1b:00: GPU has fallen off the bus.
Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU
RuntimeError: CUDA error: system not yet initialized; CUDA_ERROR_SYSTEM_NOT_READY, cudaErrorSystemNotReady
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
RuntimeError: CUDA error: out of memory
ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'
Out of memory: Killed process 4711 (python) total-vm:1kB; oom-kill:constraint=CONSTRAINT_MEMCG; reason: OOMKilled
[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes
RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error; Unexpected bus error encountered in worker; signal SIGBUS
NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes; Error while creating shared memory segment /dev/shm/nccl-abc
OSError: unable to write to file </dev/shm/torch_7>: No space left on device (28)
OSError: [Errno 122] Disk quota exceeded: 'x'
OSError: [Errno 30] Read-only file system: 'x'
the report could not be written to /runs/a: OSError: [Errno 116] Stale file handle
ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister
ModuleNotFoundError: No module named 'peft'
libcudart.so.12: cannot open shared object file: No such file or directory; /lib/libm.so.6: version `GLIBC_2.38' not found
CUDA driver version is insufficient for CUDA runtime version
NCCL WARN Bootstrap : no socket interface found; no usable interface
ConnectionRefusedError: [Errno 111] Connection refused; No route to host; Network is unreachable
socketStartConnect: connected to 192.0.2.3<4> failed : Software caused connection abort
The client socket has failed to connect to any network address of (node-01, 29500)
RuntimeError: Unable to find address for: eth9
torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError; RendezvousConnectionError
DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
  File "/venv/torch/distributed/distributed_c10d.py", line 3107 in all_reduce
CUDA error: an illegal memory access was encountered; device-side assert triggered; unspecified launch failure
CUDA error: uncorrectable ECC error encountered; CUBLAS_STATUS_EXECUTION_FAILED
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp; ncclRemoteError: A call failed possibly due to a network error
Segmentation fault (core dumped)
terminate called after throwing an instance of 'c10::Error'
""".strip().splitlines()  # of our own sources, or as torch, NCCL, CUDA, Python and Linux write it


def test_each_pattern_finds_what_is_really_said():
    patterns = [one for remedy in table().remedies.values() for one in remedy.found_by.says]
    assert [one for one in patterns if not any(re.search(one, line) for line in SAID)] == []


# --- commands -----------------------------------------------------------------------------------------------------------------


def test_each_command_is_one_that_a_shell_takes_and_no_placeholder_stands_in_quotes_of_its_own():
    """A name that is quoted would end them."""
    lines = [PLACEHOLDER.sub("x", run) for _, run in commands()]
    said = subprocess.run(["bash", "-n"], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert [run for _, run in commands() if re.search(r"'[^']*<[A-Z]+>[^']*'", run)] == []
    assert {name for _, run in commands() for name in PLACEHOLDER.findall(run)} == set(PLACEHOLDERS)


def test_no_check_changes_anything():
    checks = [(kind, PLACEHOLDER.sub("x", run)) for kind, remedy in table().remedies.items() for run in remedy.checks]
    assert [(kind, run) for kind, run in checks if CHANGES.search(run)] == []


@pytest.mark.parametrize(
    "run", ["sudo nvidia-smi -r -i 3", "scontrol update NodeName=a State=DRAIN", "kubectl cordon a", "echo 1 > /proc/x"]
)
def test_a_command_that_changes_something_would_be_seen(run):
    assert CHANGES.search(run)


TOOLS = {
    *("awk", "bash", "cat", "chronyc", "cut", "df", "dmesg", "echo", "env", "ethtool", "find", "findmnt"),
    *("free", "fuser", "getent", "gpu-acceptance", "grep", "head", "hostname", "ib_write_bw", "ibstat", "ibv_devices", "ip"),
    *("ipmitool", "journalctl", "kubectl", "dcgmi", "ldconfig", "ls", "lsmod", "lspci", "mlxlink", "mount", "numactl"),
    *("nvidia-bug-report.sh", "nvidia-smi", "perfquery", "ping", "ps", "py-spy", "python", "quota", "rpm", "sacct", "scontrol"),
    *("sha256sum", "sinfo", "sminfo", "sort", "squeue", "ssh", "systemctl", "systemd-detect-virt", "tail", "taskset", "timedatectl"),
    *("timeout", "torchrun", "ulimit", "uname", "uptime", "vmstat", "id", "iostat", "nfsiostat", "rpcinfo"),
    *("iptables-save", "nft", "ss", "dmidecode", "nproc", "srun"),
}


def test_each_command_begins_with_a_tool_that_is_known():
    """A mistyped tool is of no use at night."""
    begun = {
        next(word for word in shlex.split(part) if word != "sudo" and "=" not in word)
        for _, run in commands()
        for part in re.split(r";|(?<!\|)\|(?!\|)|&&", re.sub(r"'[^']*'|\"[^\"]*\"|\$\([^)]*\)", "quoted", run))
        if part.strip()
    }
    assert begun - TOOLS == set()


# --- the file ----------------------------------------------------------------------------------------------------


def test_each_reference_is_used():
    used = {name for remedy in table().remedies.values() for name in remedy.references}
    assert used == set(table().references)


def explained(severity, following):
    """Return the entry of a severity in the file."""
    text = REMEDIES_FILE.read_text(encoding="utf-8")
    return text[text.index(f"  {severity}:\n") : text.index(f"  {following}:\n")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    severity: reset\n",
            "    severity: pray\n",
            r"yaml: remedies.xid_reset.severity \(line \d+\): Input should be 'watch'",
        ),
        (
            "references: [xid_catalog, debug",
            "references: [catalogue, debug",
            "xid_application: reference 'catalogue' is not under",
        ),
        (
            "other processes that have the GPU open",
            "[who]",
            r"xid_application.checks.*nvidia-smi.* \(line \d+\): Input should be a valid string",
        ),
        ("says: [CUDA out of memory", "says: [CUDA (out of memory", r"'CUDA \(out of memory' is no regular expression: missing \)"),
        ("found_by: {metrics: [hbm.*.bandwidth]}", "found_by: {}", "a kind is found by something, or is from before a run, and not both"),
        ("found_by: {before_a_run: true}", "found_by: {before_a_run: true, says: [x]}", "or is from before a run, and not both"),
        (explained("watch", "reset"), "", r"remedies.xid_application: severity 'watch' is not explained under severities"),
        ("url: https://docs", "url: javascript:docs", r"references.xid_catalog.url \(line \d+\): String should match"),
    ],
)
def test_a_broken_table_is_named_with_file_key_and_line(tmp_path, old, new, message):
    text = REMEDIES_FILE.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "remedies.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(LimitsError, match=message):
        read_table(tmp_path / "remedies.yaml")


# --- kinds of failure -----------------------------------------------------------------------------------------------------------


PROFILE, JOB = make_profile(make_limit("hbm.copy.bandwidth")), make_job(1)


def judgement(metric, message="", status=Status.MISSED, **more):
    return Judgement(metric=metric, status=status, message=message, **more)


def record(message="", outcome=Outcome.DIED, **more):
    return sample_rows.rank_record("acceptance/test_nccl.py::test_large", 0, outcome, message=message, **more)


BY_METRIC = {
    "gpu_health.remapping.pending": "repair_pending",
    "gpu_health.nvlink.active": "nvlink_down",
    "nccl.transport.internode": "sockets",
    "nccl.all_reduce.busbw": "nccl_slow",
    "counters.throttle.hw_power_brake": "throttle_power",
    "soak.hbm.drift": "slows_down",
    "environment.node.kernel": "nodes_differ",
    "ddp.gpt2.unexplained": "training_overlap",
    "corruption.repeats.mismatches": "wrong_result",
    "mine.own.figure": "limit_missed",
}
XIDS = [([79], {"xid_reboot"}), ([63, 31], {"xid_reset", "xid_application"}), ([4711], {"xid_vendor"}), ([], {"xid_vendor"})]


@pytest.mark.parametrize(
    ("judged", "kinds"),
    [
        *((judgement(metric, "nothing on a log: CUDA out of memory"), {kind}) for metric, kind in BY_METRIC.items()),
        *((judgement("counters.xids", labels=labels_of(map(meaning_of, numbers))), kinds) for numbers, kinds in XIDS),
        (judgement("hbm.copy.bandwidth", "hbm.copy.bandwidth = nan", Status.INVALID), {"invalid"}),
        (judgement("hbm.copy.bandwidth", "gemm.bf16.burst with a spread of 9 %", Status.UNSTABLE), {"unstable"}),
        (judgement("hbm.copy.bandwidth", "no limit at 3 GPUs per node", Status.NO_LIMIT), {"no_limit"}),
        (judgement("hbm.copy.bandwidth", "hbm.copy.bandwidth: no figure", Status.NOT_MEASURED), {"not_measured"}),
    ],
)
def test_a_limit_is_of_the_kind_of_its_metric_its_xids_or_its_state(judged, kinds):
    assert set(kinds_of_judgement(judged)) == kinds


@pytest.mark.parametrize(
    ("metric", "value", "unit", "kind"),
    [
        ("hbm.copy.bandwidth", Missing(Why.NOT_PERMITTED, "/dev/x"), "GB/s", "not_permitted"),
        ("hbm.copy.bandwidth", Missing(Why.NOT_SUPPORTED, "/dev/x"), "GB/s", "not_supported"),
        ("hbm.copy.bandwidth", Missing(Why.NOT_THERE, "/dev/x"), "GB/s", "not_supported"),
        ("hbm.copy.bandwidth", Missing(Why.UNREADABLE, "/dev/x"), "GB/s", "invalid"),
        ("hbm.copy.bandwidth", 3.0, "TB/s", "wrong_check"),  # a mistake of its validation
        ("disk.read.bandwidth", 3.0, "GB/s", "wrong_check"),
    ],
)
def test_a_figure_that_cannot_be_judged_is_of_the_kind_of_its_reason(metric, value, unit, kind):
    figure = make_figure(metric, value, unit, judged=True)
    (found,) = judge([Attempt(number=1, ranks=(record(outcome=Outcome.PASSED, figures=(figure,)),))], PROFILE, JOB, {}, "hbm")
    assert kinds_of_judgement(found) == (kind,)


@pytest.mark.parametrize("metric", ["gpu_health.fabric.state", "gpu_health.nvlink.active"])
def test_what_one_rented_gpu_cannot_tell_is_no_miss_and_names_the_overlay_that_declares_it(metric):
    hopper = load_profile("h100-sxm", shipped_dir())
    figure = make_figure(metric, Missing(Why.NOT_SUPPORTED), hopper.limits[metric].unit, judged=True)
    attempt = Attempt(number=1, ranks=(record(outcome=Outcome.PASSED, figures=(figure,)),))
    (found,) = [one for one in judge([attempt], hopper, JOB, {}, "gpu_health") if one.metric == metric]
    assert found.status is not Status.MISSED
    assert kinds_of_judgement(found) == ("nvlink_not_told",)
    overlay = load_profile("h100-sxm", shipped_dir(), [Path("site-one-gpu")])
    assert "--limits=site-one-gpu" in table().remedies["nvlink_not_told"].do
    assert matching_reason(metric, overlay.not_applicable)


STACK = '  File "/venv/torch/distributed/distributed_c10d.py", line 3107 in all_reduce\n  File "/srv/test_nccl.py", line 9 in test_large\n'
UNFINISHED = LastCollective(group="default_pg", number=7, operation="gloo:all_reduce [[4]] Float", finished=False)


@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("out_of_host_memory", record(cause=Cause.OUT_OF_MEMORY)),
        ("shm_full", record(cause=Cause.BUS_ERROR)),
        ("shm_full", record(log_tail="NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)")),
        ("out_of_gpu_memory", record("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Outcome.ERROR)),
        ("gpu_error", record("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Outcome.ERROR)),
        ("gpu_off_bus", record(log_tail="Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.")),
        ("fabric_not_ready", record("CUDA error: system not yet initialized", Outcome.ERROR)),
        ("import_clash", record("ImportError: libcudart.so.12: cannot open shared object file: No such file", Outcome.ERROR)),
        ("import_clash", record("libtorch_cuda.so: undefined symbol: ncclCommRegister")),
        ("wrong_interface", record(log_tail="NCCL WARN Bootstrap : no socket interface found")),
        ("wrong_interface", record("", Outcome.FAILED, cause=Cause.NO_CONTACT)),
        ("crashed_in_c", record(cause=Cause.CRASHED, log_tail="CUDA out of memory")),
        ("disk_full", record("OSError: [Errno 28] No space left on device: 'x'", Outcome.ERROR)),
        ("hang_in_collective", record("", Outcome.STUCK, collectives=(UNFINISHED,))),
        ("hang_in_collective", record("deadline of 4 s passed", Outcome.STUCK, stack=STACK)),
        ("hang_in_kernel", record("", Outcome.STUCK, cause=Cause.IN_THE_KERNEL)),
        ("process_stopped", record("", Outcome.STUCK, cause=Cause.STOPPED)),
        ("stuck", record("deadline of 4 s passed", Outcome.STUCK)),
        ("died", record("the worker ended with exit code 3", stack=STACK)),
        ("failed", record("assert 1 == 2", Outcome.FAILED)),
        ("error", record("KeyError: 'x'", Outcome.ERROR)),
        ("gpu_in_use", record("", Outcome.ERROR, cause=Cause.GPU_MEMORY_HELD)),
        ("control_lost", record("", Outcome.LOST, cause=Cause.NO_HEARTBEAT)),
        ("interrupted", record("interrupted by SIGTERM", Outcome.INTERRUPTED)),
        ("skipped", record("needs two of them", Outcome.SKIPPED)),
    ],
)
def test_a_rank_is_of_the_kind_that_its_facts_or_its_words_say(kind, rank):
    assert kinds_of_rank(rank)[0] == kind


@pytest.mark.parametrize("text", ["", "no word of it is known", "\x00\ud800 <b>"])
def test_whatever_it_says_and_whatever_its_metric_nothing_is_without_a_kind(text):
    said = text.encode("utf-8", "replace").decode()
    assert [one for one in set(Outcome) - HARMLESS_OUTCOMES if not kinds_of_rank(record(said, one))] == []
    assert [one for one in set(Status) - HARMLESS_STATUSES if not kinds_of_judgement(judgement("mine.own.figure", "", one))] == []


def test_a_log_that_tells_of_everything_tells_of_three_things_at_most_and_its_end_says_why():
    everything = "SIGBUS, SIGSEGV, CUDA out of memory, Connection refused, undefined symbol, no heartbeat for 15 s, RendezvousTimeoutError"
    assert len(kinds_of_rank(record(everything))) == 3
    assert kinds_of_rank(record(log_tail=f"signal SIGBUS {'.' * 5_000} Segmentation fault")) == ("crashed_in_c",)
