"""This rank's copies of the files that decide beside the profile: the site's (`--site`) and the contract's (`--contract`).

Rank 0's are those that count. All count into the digest of the profile, so that a validation finds the rank whose copy differs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.declared import DeclaredNode, by_declared_name
from gpu_acceptance.run.site_file import SiteFile, read_site
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.contract_file import digest_of, read_contract, refuse_unanswerable
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import with_file, with_site


@dataclass(frozen=True)
class OwnFiles:
    """None where the option was not given."""

    site: SiteFile | None = None
    contract: Contract | None = None

    @property
    def nodes(self) -> tuple[DeclaredNode, ...]:
        return self.site.nodes if self.site else ()

    def rack_of(self, host: str) -> str:
        """Empty where the site's file gives none."""
        racks = self.site.racks if self.site else {}
        return racks.get(by_declared_name([host], racks).get(host, ""), "")

    def laid_on(self, profile: Profile) -> Profile:
        """The profile of a run that these files decide with."""
        profile = with_site(profile, self.site.digest) if self.site else profile
        return with_file(profile, digest_of(self.contract)) if self.contract else profile

    def refuse_unanswerable(self, profile: Profile) -> None:
        """RefusedError over a contract that this profile could never answer."""
        if self.contract:
            with _refused("--contract"):
                refuse_unanswerable(self.contract, profile)


NO_FILES = OwnFiles()


def read_own_files(site: Path | None, contract: Path | None) -> OwnFiles:
    """Raises RefusedError, which names the option."""
    with _refused("--site"):
        declared = read_site(site) if site else None
    with _refused("--contract"):
        agreed = read_contract(contract) if contract else None
    return OwnFiles(declared, agreed)


@contextmanager
def _refused(option: str) -> Iterator[None]:
    try:
        yield
    except LimitsError as error:
        raise RefusedError(f"{option}: {error}") from None
