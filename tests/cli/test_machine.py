"""`gpu-acceptance inventory`, `snapshot` and `health`, from file to exit code."""

import json
import os
from pathlib import Path

import pytest
from snapshots import REAL, changed, healthy_h200

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.thresholds.profile import shipped_dir

HEALTHY = healthy_h200()
HOW_TO = "`gpu-acceptance snapshot FILE` writes one, on the machine to look at"


@pytest.fixture
def file(tmp_path):
    def write(plain):
        path = tmp_path / "node.json"
        path.write_text(json.dumps(plain))
        return str(path)

    return write


def test_the_inventory_of_a_snapshot_is_printed_and_judges_nothing(file, capsys):
    assert main(["inventory", file(changed(HEALTHY, "node.gpus.gpus.3.remapping.is_pending", True))]) == 0
    out = capsys.readouterr().out
    assert out.startswith("node      node-07, as of 2026-11-20T12:00:00+00:00\n")
    assert "  3    NVIDIA H200  1653924100004  " in out


def test_the_inventory_of_this_machine_is_printed(capsys):
    assert main(["inventory"]) == 0
    assert "\nGPUs      " in capsys.readouterr().out


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("kept.json")], ids=["pipe", "folder", "link"])
def test_a_snapshot_replaces_a_file_and_nothing_else(tmp_path, capsys, make):
    path = tmp_path / "node.json"
    make(path)
    kind = path.lstat().st_mode
    with pytest.raises(SystemExit, match="4"):
        main(["snapshot", str(path)])
    assert capsys.readouterr().err == f"gpu-acceptance snapshot: FILE: {path}: not a regular file, so it is not replaced\n"
    assert path.lstat().st_mode == kind
    assert list(tmp_path.iterdir()) == [path]


def test_the_inventory_of_a_file_that_is_no_snapshot(tmp_path, capsys):
    assert main(["inventory", str(tmp_path / "none.json")]) == 4
    assert capsys.readouterr().err == f"gpu-acceptance: {tmp_path / 'none.json'}: no such file; {HOW_TO}\n"


def test_a_snapshot_of_this_machine_is_written_and_judged(tmp_path, capsys):
    """A machine without a GPU is named and never passes."""
    path = tmp_path / "here.json"
    assert main(["snapshot", str(path), "--redact"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: node-00, ")
    assert json.loads(path.read_text())["node"]["host"] == "node-00"
    assert main(["health", str(path)]) != 4


def test_a_snapshot_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    for folder in ("no", "file"):
        with pytest.raises(SystemExit, match="4"):
            main(["snapshot", str(tmp_path / folder / "x")])
        assert capsys.readouterr().err == f"gpu-acceptance snapshot: FILE: {tmp_path}/{folder}/x: no such folder: {tmp_path}/{folder}\n"
    long = tmp_path / ("x" * 300)
    assert main(["snapshot", str(long)]) == 3
    assert capsys.readouterr().err == f"gpu-acceptance: {long}: File name too long\n"


def test_healthy_gpus(file, capsys):
    assert main(["health", path := file(HEALTHY)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("gpu_health.retired_pages")]
    assert line == f"ACCEPTED (a snapshot of 8 GPUs: nothing was run) | {path}, taken 2026-11-20T12:00:00+00:00 | h200-sxm"


@pytest.mark.parametrize("overlay", [None, "site-nvls-off.yaml"])
def test_a_real_idle_node_is_accepted_with_nothing_waived(overlay, capsys):
    """A virtual machine passes too: it can show every row of gpu_health."""
    path = REAL / "h200x8-idle.json"
    assert main(["health", str(path), *([f"--limits={shipped_dir() / overlay}"] if overlay else [])]) == 0
    *told, line = capsys.readouterr().out.splitlines()
    assert {said.split(":")[0] for said in told} == {f"gpu_health.retired_pages.{one}" for one in ("single_bit", "double_bit", "pending")}
    assert line.startswith("ACCEPTED (")
    assert "waived" not in line
    assert line.endswith(" | h200-sxm")


def test_an_overlay_for_one_gpu_is_none_for_eight(file, capsys):
    """On a board of eight, an NVLink that is not told is missing; for one GPU by itself there is none to tell."""
    untold = changed(HEALTHY, "node.gpus.gpus.0.fabric.state", {"missing": "not supported", "detail": ""})
    assert main(["health", file(untold)]) == 6
    capsys.readouterr()
    assert main(["health", file(untold), "--limits=site-one-gpu"]) == 4
    text = "site-one-gpu.yaml: match.gpus_per_node: this overlay is for nodes with 1 GPU, and node-07 has 8"
    assert capsys.readouterr() == ("", f"gpu-acceptance: {text}\n")


def test_a_node_under_load_is_rejected_unless_busy_gpus_are_allowed(capsys):
    path = str(REAL / "h200x8-loaded.json")
    assert main(["health", path]) == 1
    assert "REJECTED: 2 limits missed in 1 of 16 validations (a snapshot of 8 GPUs: nothing was run) | " in capsys.readouterr().out
    assert main(["health", path, "--allow-busy"]) == 0
    out = capsys.readouterr().out
    assert "gpu_health.processes.foreign = 1 count (pid 1607: 1204 MiB), need <= 0 count" in out
    assert out.splitlines()[-1].startswith("ACCEPTED (2 waived, busy GPUs allowed, a snapshot of 8 GPUs: nothing was run) | ")


def test_a_sick_gpu(file, capsys):
    assert main(["health", file(changed(HEALTHY, "node.gpus.gpus.3.remapping.is_pending", True))]) == 1
    out = capsys.readouterr().out
    assert "gpu_health.remapping.pending = true, need == false [base.yaml: " in out
    assert "on rank 3 (node-07, GPU 3, serial 1653924100004); to do: reset the GPU (nvidia-smi -r)" in out
    assert out.splitlines()[-1].startswith("REJECTED: 1 limit missed in 1 of 16 validations (a snapshot of 8 GPUs: nothing was run) | ")


@pytest.mark.parametrize(("expected", "exit_code"), [("8", 0), ("9", 1)])
def test_a_node_that_should_have_more_gpus(file, capsys, expected, exit_code):
    assert main(["health", file(HEALTHY), f"--expect-gpus={expected}"]) == exit_code
    assert ("environment.site.difference = node-07 has 8 GPUs, not 9" in capsys.readouterr().out) is (exit_code == 1)


def test_gpus_that_could_not_be_read(file, capsys):
    missing = {"missing": "not there", "detail": "NVML does not start: Driver Not Loaded"}
    assert main(["health", path := file(changed(HEALTHY, "node.gpus.gpus", missing))]) == 6
    said = "the GPUs of node-07 could not be read: not there (NVML does not start: Driver Not Loaded)"
    assert capsys.readouterr().out == f"INCOMPLETE: {said} | {path}, taken 2026-11-20T12:00:00+00:00\n"


def test_a_name_that_could_not_be_read_needs_a_profile(file, capsys):
    path = file(changed(HEALTHY, "node.gpus.gpus.0.name", {"missing": "unreadable", "detail": "GPU is lost"}))
    assert main(["health", path]) == 4
    assert capsys.readouterr().err == (
        f"gpu-acceptance: {path}: the name of GPU 0 could not be read: unreadable (GPU is lost); name a profile with --hardware=NAME\n"
    )
    assert main(["health", path, "--hardware=h200-sxm"]) == 6


def test_a_gpu_without_a_profile(file, capsys):
    assert main(["health", file(changed(HEALTHY, "node.gpus.gpus.0.name", "NVIDIA Z900"))]) == 4
    assert "no profile for the GPU 'NVIDIA Z900'" in capsys.readouterr().err


def test_an_overlay_is_applied_to_the_profile_and_shown(file, tmp_path, capsys):
    overlay = tmp_path / "ours.yaml"
    overlay.write_text(
        "limits:\n  gpu_health.temperature.margin: "
        '{at_least: 60, unit: C, scope: rank, source: "policy: our room is cold, and so are our GPUs"}\n'
    )
    assert main(["health", file(HEALTHY), f"--limits={overlay}"]) == 1
    out = capsys.readouterr().out
    assert "gpu_health.temperature.margin = 53 C, need >= 60 C [ours.yaml: policy: our room is cold" in out
    assert "overlay ours.yaml" in out.splitlines()[-1]


def test_a_file_that_is_no_snapshot(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    said = f"gpu-acceptance: {tmp_path / 'x.json'}: a JSON file of another kind, not a snapshot; {HOW_TO}\n"
    for verb in ("health", "inventory"):
        assert main([verb, str(tmp_path / "x.json")]) == 4
        assert capsys.readouterr().err == said


def test_a_snapshot_that_was_damaged(file, tmp_path, capsys):
    (tmp_path / "x.json").write_text(Path(file(HEALTHY)).read_text().replace('"host"', '"hots"', 1))
    assert main(["health", str(tmp_path / "x.json")]) == 3
    assert capsys.readouterr().err == f"gpu-acceptance: {tmp_path / 'x.json'}: node.host is missing\n"


def test_an_overlay_for_a_validation_of_the_sites_own(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acceptance").mkdir()
    (tmp_path / "acceptance" / "test_burn_in.py").touch()
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["gpu_acceptance.plugin"]\n')
    (tmp_path / "ours.yaml").write_text(
        'limits:\n  burn_in.power.mean: {at_least: 60, unit: W, scope: rank, source: "policy: what our own validation asks for"}\n'
    )
    assert main(["health", file(HEALTHY), "--limits=ours.yaml"]) == 0
    assert "1 limit added by overlay ours.yaml" in capsys.readouterr().out
