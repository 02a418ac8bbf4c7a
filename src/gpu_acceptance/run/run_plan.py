"""What was asked for, put together into the plan that every rank keeps in its journal."""

import contextlib
import os
import sys
from collections.abc import Collection

import psutil

from gpu_acceptance import __version__
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.torchrun import find_owner
from gpu_acceptance.record.run_record import PlannedValidation, RunPlan
from gpu_acceptance.run.collecting import Collected
from gpu_acceptance.run.own_files import OwnFiles
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.run.suite_state import look_at_suite
from gpu_acceptance.supervisor.generations import Validation
from gpu_acceptance.thresholds.levels import num_left_out, runs
from gpu_acceptance.thresholds.limit import Profile


def make_plan(
    run_id: str,
    started_at: str,
    place: Rank,
    settings: Settings,
    profile: Profile,
    collected: Collected,
    validations: Collection[Validation],
    files: OwnFiles,
    *,
    has_authentic_messages: bool,
) -> RunPlan:
    """The plan of a run, as rank 0 makes it for all."""
    return RunPlan(
        run_id=run_id,
        started_at=started_at,
        command=tuple(_command(place)),
        profile=profile,
        waivers=dict(settings.waivers),
        declared_gpus=settings.declared_gpus,
        expected_nodes=settings.expected_nodes,
        declared_nodes=files.nodes,
        contract=files.contract,
        measure_only=settings.measure_only,
        allow_busy=settings.allow_busy,
        has_authentic_messages=has_authentic_messages,
        has_closing=True,
        num_deselected=collected.num_deselected,
        selection=collected.selection,
        not_collected=tuple(collected.not_collected),
        not_at_level=num_left_out(profile, (one.nodeid for one in validations)),
        suite=look_at_suite(settings.suite.parent, collected.items, collected.seen, collected.made, is_whole=not collected.selection),
        validations=tuple(
            PlannedValidation(
                nodeid=one.nodeid,
                deadline_s=one.deadline_s,
                min_ranks=one.min_ranks,
                min_ranks_per_node=one.min_ranks_per_node,
                min_nodes=one.min_nodes,
                needs=one.needs,
            )
            for one in validations
            if runs(profile, one.nodeid)
        ),
        gpu_acceptance_version=__version__,
    )


def _command(place: Rank) -> list[str]:
    """How the run was started: by `gpu-acceptance run`, by a torchrun, or this process alone."""
    with contextlib.suppress(psutil.Error):
        if owner := find_owner():
            return owner.cmdline()
        if place.has_agent:
            return psutil.Process(os.getppid()).cmdline()
    return sys.orig_argv
