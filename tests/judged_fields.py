"""The values of a snapshot that the rows of gpu_health read, found by watching them read."""

from collections.abc import Iterator
from dataclasses import is_dataclass

from gpu_acceptance.cli.snapshot_file import Snapshot
from gpu_acceptance.inventory import gpu_health
from gpu_acceptance.inventory.answer import Missing

_PLACES = {"index", "source", "target"}  # which link, which pair: no answer of the machine


class Watched:
    """A reading that notes, by its path, each answer that is asked for."""

    def __init__(self, value: object, path: str, asked: set[str]) -> None:
        self._value, self._path, self._asked = value, path, asked

    def __getattr__(self, name: str) -> object:
        return self._part(getattr(self._value, name), f"{self._path}.{name}", name)

    def _part(self, value: object, path: str, name: str) -> object:
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            return tuple(Watched(part, f"{path}.{number}", self._asked) for number, part in enumerate(value))
        if is_dataclass(value) and not isinstance(value, Missing):
            return Watched(value, path, self._asked)
        if name not in _PLACES:
            self._asked.add(path)
        return value


def judged_fields(snapshot: Snapshot, index: int) -> Iterator[tuple[str, str, str]]:
    """Topic, metric and path of each value that a row about one GPU is made of."""
    asked: set[str] = set()
    gpu = Watched(snapshot.node.gpus.gpus[index], f"node.gpus.gpus.{index}", asked)
    reading = Watched(snapshot.node.gpus, "node.gpus", asked)
    topics = {topic: findings(gpu) for topic, findings in gpu_health.PER_GPU.items()}
    topics |= {"peers": gpu_health.peers(reading, index), "processes": gpu_health.processes(gpu)}
    for topic, findings in topics.items():
        for metric, *_ in findings:
            yield from ((topic, metric, path) for path in sorted(asked))
            asked.clear()
