"""A run in which something else was planned or measured, as it would have been judged."""

from dataclasses import replace

from gpu_acceptance.verdict.run_record import conclude_again


def judged_anew(record, *, rows=None, ranks=None, profile=None, ended_at=None, **of_plan):
    """The record that these rows and ranks give. `profile`: fields of the profile; `of_plan`: of the plan."""
    plan = record.plan.model_copy(update={"profile": replace(record.plan.profile, **(profile or {})), **of_plan})
    told = record.ranks if ranks is None else ranks
    changed = {
        "plan": plan,
        "ranks": tuple(one.model_copy(update={"run_id": plan.run_id}) for one in told),
        "rows": tuple(record.rows if rows is None else rows),
        "ended_at": ended_at or record.ended_at,
    }
    return conclude_again(record.model_copy(update=changed))
