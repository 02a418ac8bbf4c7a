"""Verbs about a machine: show its hardware, keep it in a file, judge it, and watch its GPUs."""

import argparse
import os
import re
import signal
import sys
from pathlib import Path

from gpu_acceptance.base.text import one_line, visible
from gpu_acceptance.cli.arguments import (
    INCOMPLETE,
    INTERRUPTED,
    UNREADABLE,
    Verbs,
    add_overlays,
    add_verb,
    fail,
    new_file,
    not_allowed,
    whole_number,
)
from gpu_acceptance.cli.node import inventory_lines
from gpu_acceptance.cli.snapshot_file import NoGpusError, gpus_of, judge_snapshot, read_snapshot, redact, take, write_snapshot
from gpu_acceptance.cli.watch import watch
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.nvml import NoNvmlError
from gpu_acceptance.run.suite import FOLDER, suite_for
from gpu_acceptance.thresholds.profile import load_profile, select_profile, shipped_dir

SHORTEST_S, LONGEST_S = 0.1, 3600.0


def add_verbs(verbs: Verbs) -> None:
    """Add `inventory`, `snapshot`, `health` and `watch`."""
    written = "written by `gpu-acceptance snapshot`"
    add_verb(verbs, "inventory", _inventory).add_argument("file", metavar="FILE", nargs="?", type=Path, help=written)
    snapshot = add_verb(verbs, "snapshot", _snapshot)
    snapshot.add_argument("file", metavar="FILE", type=new_file, help="the file; an existing one is replaced")
    snapshot.add_argument("--redact", action="store_true", help="replace serial numbers, UUIDs and host names")
    health = add_verb(verbs, "health", _health)
    health.add_argument("file", metavar="FILE", type=Path, help=written)
    health.add_argument("--hardware", metavar="NAME", help="the profile to judge by (default: the one for the GPUs of the snapshot)")
    add_overlays(health)
    health.add_argument("--allow-busy", action="store_true", help="judge a snapshot that was taken under load; shown in the verdict")
    gpus = "number of GPUs that the node must have (default: what it shows)"
    health.add_argument("--expect-gpus", metavar="N", type=whole_number(9_999), help=gpus)
    watch = add_verb(verbs, "watch", _watch)
    watch.add_argument("--interval", metavar="S", type=_seconds, default=1.0, help="seconds from one table to the next (default: 1)")
    watch.add_argument("--count", metavar="N", type=whole_number(999_999_999), help="number of tables to show (default: no end)")


def _inventory(options: argparse.Namespace) -> int:
    """Show the hardware of this machine, or of a snapshot, on one screen.

    Show this machine, or a snapshot of one: host, CPUs, memory, GPUs, links, RDMA devices, mounts, the resources that a process may use,
    and the XIDs of the kernel log. Nothing is judged. `?` stands for a value that the machine does not give.
    """
    print("\n".join(inventory_lines(read_snapshot(options.file) if options.file else take())))
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    """Write everything that this machine reports about itself to a file.

    Write everything that this node reports (GPUs through NVML, PCI bus, kernel) to FILE, as JSON. Touches no GPU and needs no privilege. A
    value that the machine does not give is in the file with the reason.
    """
    snapshot = take()
    write_snapshot(options.file, redact(snapshot) if options.redact else snapshot)
    gpus = snapshot.node.gpus.gpus
    seen = f"GPUs: {gpus}" if isinstance(gpus, Missing) else f"{len(gpus)} GPUs"
    print(f"{one_line(str(options.file))}: {one_line(snapshot.node.host) if not options.redact else 'node-00'}, {one_line(seen)}")
    return 0


def _health(options: argparse.Namespace) -> int:
    """Judge the GPUs of a snapshot as a run would.

    Judge the GPUs of a snapshot by the limits of subject gpu_health, as a run on that machine would. Its RDMA devices and its kernel log
    are judged where the profile or an overlay requires infiniband or kernel_log. Print what is wrong, then the verdict line, and return
    its exit code.
    """
    snapshot, directory = read_snapshot(options.file), shipped_dir()
    try:
        name = gpus_of(snapshot)[0].name
    except NoGpusError as error:
        print(f"INCOMPLETE: {one_line(str(error))} | {one_line(str(options.file))}, taken {one_line(snapshot.taken_at)}")
        return INCOMPLETE
    if isinstance(name, Missing) and not options.hardware:
        raise ValueError(f"{options.file}: the name of GPU 0 could not be read: {name}; name a profile with --hardware=NAME")
    profile = load_profile(
        options.hardware or select_profile(str(name), directory), directory, options.limits, suite_for(Path.cwd()) / FOLDER
    )
    _, rows, conclusion = judge_snapshot(snapshot, profile, allow_busy=options.allow_busy, num_gpus=options.expect_gpus)
    for row in rows:
        if row.message:
            print(visible(row.message))
    print(f"{one_line(conclusion.line)} | {one_line(str(options.file))}, taken {one_line(snapshot.taken_at)} | {profile.name}")
    return conclusion.exit_code


def _seconds(text: str) -> float:
    if not (re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) and SHORTEST_S <= float(text) <= LONGEST_S):
        raise not_allowed(text, f"{SHORTEST_S:g} to {LONGEST_S:g} seconds")
    return float(text)


def _watch(options: argparse.Namespace) -> int:
    """Show clocks, power, heat and traffic of this node's GPUs, every second.

    Show what each GPU of this node does now, from NVML, and what each RDMA port sends and receives: in place on a terminal, else one table
    below the other. Ctrl-C ends it. Nothing is judged, no GPU is touched, no privilege is needed. `?` stands for a value that the machine
    does not give, with the reason. GB = 1e9 bytes, GiB = 2**30. Exit code 3: NVML shows no GPU.
    """
    # A KeyboardInterrupt would be dropped where it comes inside a weakref's callback, and each frame frees threads that have one.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        watch(sys.stdout, interval_s=options.interval, most_frames=options.count)
    except NoNvmlError as error:
        return fail(error, UNREADABLE)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes nowhere, and is no error
    return 0
