"""What carries data between GPUs, in one line for the first screen, as far as the run was told."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import rounded

_LINKS, _STATE = "gpu_health.nvlink.active", "gpu_health.fabric.state"
_NCCL = ("nccl.*.algorithm", "nccl.transport.*")
_NOT_TOLD = "not told"


def fabric(record: RunRecord) -> str:
    """`NVLinks up on each GPU: 18; fabric: completed; NCCL: NVLS, P2P; RDMA devices: none`. Where ranks differ, all that they say."""
    parts = [
        ("NVLinks up on each GPU", _said(record, _LINKS)),
        ("fabric", _said(record, _STATE)),
        ("NCCL", ", ".join(dict.fromkeys(filter(None, (_said(record, glob) for glob in _NCCL))))),
        ("RDMA devices", _cards(record)),
    ]
    return "; ".join(f"{name}: {said or _NOT_TOLD}" for name, said in parts if said or _is_on_gpus(record))


def _is_on_gpus(record: RunRecord) -> bool:
    return any(identity.gpu for identity in record.ranks)


def _said(record: RunRecord, glob: str) -> str:
    return ", ".join(sorted({rounded(figure.value) for figure in _figures(record, glob) if figure.value is not None}))


def _figures(record: RunRecord, glob: str) -> Iterator[Figure]:
    subject = glob.partition(".")[0]
    for row in (row for row in record.rows if row.subject == subject and row.attempts):
        for rank in row.attempts[-1].ranks:
            yield from (figure for figure in rank.figures if fnmatchcase(figure.metric, glob))


def _cards(record: RunRecord) -> str:
    """As the first rank of each node was told."""
    inventories = [identity.inventory for identity in record.ranks if identity.inventory]
    return " or ".join(sorted({one.get("rdma_devices", _NOT_TOLD) for one in inventories}))
