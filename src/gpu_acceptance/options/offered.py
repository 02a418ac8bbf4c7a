"""The options of the acceptance run, as `--help` lists them."""

import pytest

from gpu_acceptance.launch.patience import JOIN_S
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-acceptance", "acceptance of a GPU cluster (write every option as --option=VALUE)")
    group.addoption("--limits", metavar="FILE", action="append", default=[], help="overlay of limits; may be given several times")
    group.addoption("--hardware", metavar="NAME", help="profile to judge by; refused where the machine has other GPUs")
    group.addoption("--waive", metavar="METRIC-GLOB=reason", action="append", default=[], help="accept without these limits; shown")
    levels = f"how much runs: {', '.join(LEVELS)}, as the profile says; default: {DEFAULT_LEVEL}"
    group.addoption("--level", metavar="LEVEL", help=levels)
    group.addoption("--soak", metavar="TIME", help="level soak: seconds, or 30m or 4h, under load; default: as the profile says")
    group.addoption("--localise", action="store_true", help="several nodes: say which node, rail or path is slow; at each level")
    group.addoption("--gpus", metavar="N", help="only N GPUs of each node are under test; without it a GPU without a rank is a gap")
    group.addoption("--expect-nodes", metavar="N", help="nodes that there must be: of fewer the run is INCOMPLETE, of more it is refused")
    wait = f"how long ranks that are there wait for the others: {JOIN_S:g} (the default), 15m or 1h"
    group.addoption("--join-timeout", metavar="TIME", help=wait)
    group.addoption("--allow-busy", action="store_true", help="run on GPUs that somebody else uses as well; shown in the verdict line")
    group.addoption("--site", metavar="FILE", help="which nodes there must be, their GPUs and racks; a node that differs fails by name")
    lines = "a contract in lines with the metrics that answer them: a line missed rejects, one not tested leaves the run incomplete"
    group.addoption("--contract", metavar="FILE", help=lines)
    group.addoption("--checkpoint-dir", metavar="DIR", help="folder that all nodes share, for the checkpoints of subject checkpoint")
    shared = "is this folder one and the same on all nodes, and how fast? at each level; whatever is in it stays"
    group.addoption("--shared-dir", metavar="DIR", help=shared)
    own = "train on data of your own: DIR/tokens.npy, DIR/images/CLASS/FILE, or both, on every node; without it data is synthetic"
    group.addoption("--data-dir", metavar="DIR", help=own)
    model = "fine-tune this checkpoint in Hugging Face format, with its own tokenizer, the same on every node; with --lora-data"
    group.addoption("--lora-model", metavar="DIR", help=model)
    calls = "JSON lines of dialogues with function calls, in chat format or of glaive-function-calling-v2; with --lora-model"
    group.addoption("--lora-data", metavar="FILE", help=calls)
    group.addoption("--measure-only", action="store_true", help="run and record everything, judge nothing; the run is INCOMPLETE")
    group.addoption("--plan", action="store_true", help="print what would run, its limits and its time; touches no GPU; exit code 5")
    group.addoption(
        "--confirm", metavar="N", help="measure a missed limit N times more, each time by new workers; the worst attempt counts"
    )
    group.addoption(
        "--budget", metavar="TIME", help="seconds, or 30m or 2h, for the whole run, report included; default: the Slurm job's end"
    )
    reports = "folder of all runs; each makes its own in it (default: reports/ of the suite; of the current folder where that is installed)"
    group.addoption("--report-dir", metavar="DIR", help=reports)
    curves = "write the curves of the run for TensorBoard too, into tensorboard/ of its folder; needs the extra tensorboard on rank 0"
    group.addoption("--tensorboard", action="store_true", help=curves)
    group.addoption("--run-id", metavar="ID", help="name of this run's folder; must not exist (default: time and a random part)")
