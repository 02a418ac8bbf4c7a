"""The objects that kustomize builds from deploy/kubernetes, and a pod as the kubelet would start it."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from suite import extend_conftest, shipped_suite

MANIFESTS = Path(__file__).parents[1] / "deploy" / "kubernetes"
needs_mounts = pytest.mark.needs("privileged", "/var/run", "util-linux")  # an account is mounted as the kubelet does it
_MOUNTED = (
    'mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && cp -r "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_VARIABLE = re.compile(r"\$\((\w+)\)")


@cache
def built(overlay: str, manifests: Path = MANIFESTS) -> dict[str, dict[str, Any]]:
    """Kind -> object, as `kubectl apply -k` would send them. There is one of each kind."""
    command = ["kubectl", "kustomize", str(manifests / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr, done.stderr  # kustomize warns of what it will not take for long
    objects = list(yaml.safe_load_all(done.stdout))
    assert len({found["kind"] for found in objects}) == len(objects)
    return {found["kind"]: found for found in objects}


def resized(folder: Path, overlay: str, **literals: int) -> Path:
    """A copy of the manifests in which this overlay says other numbers: `gpus_per_node=1`."""
    manifests = shutil.copytree(MANIFESTS, folder / "kubernetes")
    path = manifests / "overlays" / overlay / "kustomization.yaml"
    text = path.read_text()
    for name, value in literals.items():
        text, number = re.subn(rf"\b{name.replace('_', '-')}=\d+", f"{name.replace('_', '-')}={value}", text)
        assert number == 1, (name, path)
    path.write_text(text)
    return manifests


def environment_of(container: dict[str, Any], labels: dict[str, str], annotations: dict[str, str]) -> dict[str, str]:
    """The variables of a container, in a pod with these labels and annotations. One that is not there is empty, as the kubelet has it."""
    known: dict[str, str] = {}
    for entry in container["env"]:
        if "value" in entry:
            known[entry["name"]] = _VARIABLE.sub(lambda match: known[match[1]], entry["value"])
        else:
            if "secretKeyRef" in entry["valueFrom"]:
                continue  # optional, and no such secret was made
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            if path == "spec.nodeName":
                continue  # of hosts here the name is their own
            field = _FIELD.fullmatch(path)
            assert field, entry
            known[entry["name"]] = {"labels": labels, "annotations": annotations}[field[1]].get(field[2], "")
    return known


def in_pod(account: Path, *command: str) -> list[str]:
    """The command with the account's files in their place, which a container has for itself."""
    return ["unshare", "--mount", "sh", "-c", _MOUNTED, str(account), *command]


def suite_in_pod(folder: Path, account: Path) -> Path:
    """Subject `kubernetes`, in a pod that has this account mounted."""
    suite = shipped_suite(folder, "kubernetes")
    extend_conftest(
        suite,
        "from pathlib import Path",
        "from gpu_acceptance.inventory import kubernetes",
        f"kubernetes.ACCOUNT = Path({str(account)!r})",
    )
    return suite
