"""A run made fit to publish names no machine any more, and still agrees with itself."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from report import samples

from gpu_acceptance.files import read_results, write_results

TOOL = Path(__file__).parents[1] / "tools" / "make_sample.py"


def test_no_name_of_a_machine_is_left(tmp_path):
    record = samples.rejected()
    run = tmp_path / "run"
    run.mkdir()
    write_results(run, record)
    (run / "logs").mkdir()
    names = {gpu.serial for identity in record.header.ranks for gpu in identity.gpus}
    names |= {gpu.uuid for identity in record.header.ranks for gpu in identity.gpus} | {identity.host for identity in record.header.ranks}
    assert len(names) == 17
    (run / "logs" / "rank-00000.log").write_text("\n".join(sorted(names)))
    subprocess.run([sys.executable, str(TOOL), str(run), str(tmp_path / "sample")], check=True)
    texts = [path.read_text() for path in (tmp_path / "sample").rglob("*") if path.is_file()]
    assert len(texts) == 3
    kept = {f"node-{node:02d}" for node in range(2)}  # what stands for a host may be its name
    assert not [name for name in names - kept for text in texts if name in text]
    assert read_results(tmp_path / "sample").conclusion.coverage == record.conclusion.coverage


def test_a_short_host_name_is_not_looked_for_inside_words():
    spec = importlib.util.spec_from_file_location("make_sample", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.replaced("nvml of vm, <b>vm</b>, vm-2", {"vm": "node-00"}) == "nvml of node-00, <b>node-00</b>, node-00-2"
