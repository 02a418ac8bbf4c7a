"""`--plan` with a contract: which of its lines this run will answer, and why not the others. Touches no GPU."""

from collections.abc import Iterator, Mapping

from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.run.plan import JobShape
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.values import plural
from gpu_acceptance.verdict.contract import judge_contract
from gpu_acceptance.verdict.coverage import judge_run


def contract_lines(contract: Contract, profile: Profile, job: JobShape, waivers: Mapping[str, str]) -> Iterator[str]:
    """One for each line of the contract: judged as if all held that this run asks for."""
    expected = judge_run((), profile, _as_planned(job), waivers)
    held = [one.model_copy(update={"status": Status.HELD}) if one.status is Status.NOT_MEASURED else one for one in expected]
    yield f"contract {contract.file}: {plural(len(contract.lines), 'line')}"
    for one in judge_contract(contract, held, job.num_nodes, profile.not_applicable).lines:
        answer = ", ".join(filter(None, [*one.line.metrics, one.line.asks]))
        why = "; ".join(one.reasons)
        yield f"  {one.line.number}: {f'will not be tested: {why}' if why else answer}"


def _as_planned(job: JobShape) -> Job:
    """Ranks of which nothing is known but their places."""
    size, num_ranks = job.ranks_per_node, job.ranks_per_node * job.num_nodes
    places = [(rank, *divmod(rank, size)) for rank in range(num_ranks)]
    return Job(
        tuple(
            RankIdentity(rank=rank, local_rank=local_rank, node=node, host="", local_world_size=size, world_size=num_ranks)
            for rank, node, local_rank in places
        )
    )
