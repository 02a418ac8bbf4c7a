"""A run made fit to publish names no machine any more, and still agrees with itself."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from report import samples

from gpu_acceptance.files import read_results, write_results

TOOL = Path(__file__).parents[1] / "tools" / "make_sample.py"


def sample_of(folder, record, **logs):
    """The sample of a run with this record and these logs, and with event files, whose folders are named by hosts."""
    run = folder / "run"
    (run / "logs").mkdir(parents=True)
    (run / "tensorboard" / record.header.ranks[0].host).mkdir(parents=True)
    (run / "tensorboard" / record.header.ranks[0].host / "events.out.tfevents.1").write_bytes(b"\xff")
    write_results(run, record)
    for name, text in logs.items():
        (run / "logs" / name).write_text(text)
    subprocess.run([sys.executable, str(TOOL), str(run), str(folder / "sample")], check=True)
    return folder / "sample"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_sample", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_name_of_a_machine_is_left(tmp_path):
    record = samples.rejected()
    names = {gpu.serial for identity in record.header.ranks for gpu in identity.gpus}
    names |= {gpu.uuid for identity in record.header.ranks for gpu in identity.gpus} | {identity.host for identity in record.header.ranks}
    names |= {identity.inventory["product_serial"] for identity in record.header.ranks if identity.inventory}
    assert len(names) == 18
    sample = sample_of(tmp_path, record, log="\n".join(sorted(names)))
    texts = [path.read_text() for path in sample.rglob("*") if path.is_file()]
    assert len(texts) == 3
    assert not (sample / "tensorboard").exists()
    kept = {f"node-{node:02d}" for node in range(2)}  # what stands for a host may be its name
    assert not [name for name in names - kept for text in texts if name in text]
    assert read_results(sample).conclusion.coverage == record.conclusion.coverage


def test_paths_of_the_command_are_replaced_in_record_page_and_logs(tmp_path):
    record = samples.accepted()
    command = ("/opt/bin/python", "-m", "pytest", "acceptance/", "--report-dir=/scratch/lab-7/runs", "--limits=/mnt/lab-7/site.yaml")
    record = record.model_copy(update={"header": record.header.model_copy(update={"command": command})})
    log = "report: /scratch/lab-7/runs/20261120-072000-a1b2/report.html\noverlay /mnt/lab-7/site.yaml"
    sample = sample_of(tmp_path, record, log=log)
    replaced = ("python", "-m", "pytest", "acceptance/", "--report-dir=/suite/reports", "--limits=site.yaml")
    assert read_results(sample).header.command == replaced
    assert "--report-dir=/suite/reports --limits=site.yaml" in (sample / "report.html").read_text()
    assert (sample / "logs" / "log").read_text() == "report: /suite/reports/20261120-072000-a1b2/report.html\noverlay site.yaml"
    assert not [path for path in sample.rglob("*") if path.is_file() and "lab-7" in path.read_text()]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rootdir: /data/lab/suite-2\n/data/lab/suite-2/.venv", "rootdir: /suite\n/suite/.venv"),
        ('File "/data/lab/acceptance/test_hbm.py", line 7', 'File "/suite/acceptance/test_hbm.py", line 7'),
        ("file:///data/lab/src/gpu_acceptance/worker.py /data/labels", "file:///suite/src/gpu_acceptance/worker.py /data/labels"),
        ('"/opt/lab/.venv/lib/python3.12/site-packages/torch/a.py"', '"/venv/lib/python3.12/site-packages/torch/a.py"'),
        ("acceptance/test_hbm.py /usr/local/cuda", "acceptance/test_hbm.py /usr/local/cuda"),
        ("198.51.100.7:29400, 198.51.100.9, 198.51.100.7", "192.0.2.1:29400, 192.0.2.2, 192.0.2.1"),
        ("127.0.0.1 0.0.0.0 192.0.2.9 580.159.04 999.1.1.1 1.2.3.4.5", "127.0.0.1 0.0.0.0 192.0.2.9 580.159.04 999.1.1.1 1.2.3.4.5"),
        ("GPU-DFB87D17-aecb-46c5-818a-953e232b5531", "GPU-00000000-0000-0000-0000-ffffffffffff"),
        ("/dfb87d17-aecb-46c5-818a-953e232b5531_u3/", "/00000000-0000-0000-0000-ffffffffffff_u3/"),
        ("GPU-00000000-0000-0000-0001-000000000002", "GPU-00000000-0000-0000-0001-000000000002"),
        ('by <a href="https://example.org/a">pytest-html</a>', "by pytest-html"),
        ('<a href="#wrong">What is wrong</a>', '<a href="#wrong">What is wrong</a>'),
    ],
)
def test_what_the_record_does_not_name_is_found_in_the_texts(tool, before, after):
    assert tool.replaced(before, tool.found([before])) == after


def test_a_short_host_name_is_not_looked_for_inside_words(tool):
    assert tool.replaced("nvml of vm, <b>vm</b>, vm-2", {"vm": "node-00"}) == "nvml of node-00, <b>node-00</b>, node-00-2"
