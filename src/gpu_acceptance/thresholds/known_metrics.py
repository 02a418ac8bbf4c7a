"""The metrics that exist, for overlays, contracts and waivers that name one.

A metric is known where a profile limits it, or a profile or the overlay itself names it among its `figures`: what validations record,
or check where only a site has a limit. Of a subject about which no profile says anything, any metric is known if the suite has a
validation of that name: it is a site's own. So a typing error in a metric is told before a run, and not by a limit that is never judged.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.families import expand
from gpu_acceptance.thresholds.file import LimitsFile
from gpu_acceptance.thresholds.limit import subject_of, subject_of_metric


@dataclass(frozen=True)
class KnownMetrics:
    """Metric -> unit: `limited` by exact name, `figures` by names that may hold a `*`. `own`: subjects of a site's own validations."""

    limited: Mapping[str, str]
    figures: Mapping[str, str]
    own: frozenset[str]

    def unit_of(self, metric: str) -> str | None:
        """Return the unit; None if the metric is unknown or belongs to a subject of a site's own."""
        return self.limited.get(metric) or next((unit for name, unit in self.figures.items() if fnmatchcase(metric, name)), None)

    def problem_of(self, metric: str, unit: str | None) -> str:
        """Return the reason why a limit on this metric in this unit would never be judged, or an empty text. None: an unknown unit."""
        subject = subject_of_metric(metric)
        wanted = self.unit_of(metric)
        if wanted is None:
            return "" if subject in self.own else f"no validation has this metric{self._hint(metric)}"
        return (
            "" if unit in (None, wanted) else f"the unit is {unit!r}, and this metric is measured in {wanted!r}; a limit cannot change that"
        )

    def matching(self, glob: str) -> list[str]:
        """All names that this glob, or the subject of this name, stands for."""
        names = sorted({**self.limited, **self.figures})
        return [name for name in names if fnmatchcase(name, glob) or subject_of_metric(name) == glob]

    def nearest(self, name: str) -> str:
        """`; did you mean 'hbm.triad.bandwidth'?`."""
        return nearest_metric(name, [*self.limited, *self.figures])

    def _hint(self, metric: str) -> str:
        subject, subjects = subject_of_metric(metric), sorted(self.subjects | self.own)
        if subject not in subjects:
            return f"; there is no subject {subject!r}{did_you_mean(subject, subjects)}"
        return self.nearest(metric) or f"; `gpu-acceptance explain {subject}` lists those of its subject"

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(map(subject_of_metric, [*self.limited, *self.figures]))


def known_metrics(profiles: Iterable[LimitsFile], overlays: Iterable[LimitsFile] = (), suite: Path | None = None) -> KnownMetrics:
    """Collect the metrics that these files name. `suite`: the folder of validations, in which a site may have subjects of its own."""
    profiles = list(profiles)
    limited = {metric: entry.unit for file in profiles for metric, entry in file.content.limits.items()}
    declared = [declaration for file in (*profiles, *overlays) for declaration in file.content.figures.items()]
    figures = {name: unit for family, unit in declared for name in expand(family)}
    named = KnownMetrics(limited, figures, frozenset())
    own = frozenset(subject_of(path.name) for path in suite.rglob("test_*.py")) if suite else frozenset()
    return KnownMetrics(limited, figures, own - named.subjects)


def nearest_metric(name: str, metrics: Collection[str]) -> str:
    """`; did you mean 'hbm.triad.*'?`: for a glob, of the globs over metrics that begin alike."""
    if "*" not in name:
        return did_you_mean(name, metrics)
    parts = [metric.split(".") for metric in metrics]
    return did_you_mean(name, sorted({".".join([*part[:end], "*"]) for part in parts for end in range(1, len(part))}))
