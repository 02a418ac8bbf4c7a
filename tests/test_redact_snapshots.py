"""A snapshot and its `nvidia-smi -q -x`, made fit to publish: no name is left in either, and they still agree with each other."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snapshots import REAL, REAL_NAMES

from gpu_acceptance.cli.snapshot_file import decode, read_snapshot, redact
from tools.gpu.nvidia_smi import differences

TOOL = Path(__file__).parents[1] / "tools" / "redact_snapshots.py"
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
XML = "<nvidia_smi_log><gpu>{}</gpu></nvidia_smi_log>"


def raw_pair(name):
    """As the machine might have said it: the committed pair with other names."""
    names = {"node-00": "gpu-host-17", "process-00": "/opt/someone/bin/python"}
    for number in range(8):
        names[f"16500000{number:05d}"] = f"16537240{number + 55_000:05d}"
        names[f"GPU-00000000-0000-0000-0000-{number:012d}"] = f"GPU-6983d4a3-37d9-0338-f8b1-59de9f5f706{number}"
        names[f"<pdi>0x{number:016x}<"] = f"<pdi>0x79794e5fd8f3986{number}<"
        names[f"<board_id>0x{number:x}<"] = f"<board_id>0x6{number}00<"
    texts = [(REAL / f"{name}{suffix}").read_text(encoding="utf-8") for suffix in (".json", ".xml")]
    for other, real in names.items():
        texts = [text.replace(other, real) for text in texts]
    return *texts, [re.sub("<.*?>|<", "", real) for real in names.values()]


@pytest.mark.parametrize("name", REAL_NAMES)
def test_no_name_is_left_and_all_else_is_kept(tmp_path, name):
    snapshot, xml, names = raw_pair(name)
    assert len(names) == 34
    assert differences(decode(snapshot).node.gpus, xml) == []
    with_clocks = xml.replace("<processes>", "<supported_clocks>\n<value>1 MHz</value></supported_clocks><processes>")
    (tmp_path / "raw.json").write_text(snapshot)
    (tmp_path / "raw.xml").write_text(with_clocks)
    subprocess.run([sys.executable, str(TOOL), str(tmp_path / "raw"), str(tmp_path / "out")], check=True)
    published, shown = ((tmp_path / f"out{suffix}").read_text(encoding="utf-8") for suffix in (".json", ".xml"))
    assert [one for one in names if one in published or one in shown] == []
    assert published == (REAL / f"{name}.json").read_text(encoding="utf-8")
    assert shown == (REAL / f"{name}.xml").read_text(encoding="utf-8")
    assert differences(read_snapshot(tmp_path / "out.json").node.gpus, shown) == []


@pytest.fixture
def redacted():
    """Redact one XML beside the snapshot of a raw pair."""
    spec = importlib.util.spec_from_file_location("redact_snapshots", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    raw = decode(raw_pair("h200x8-idle")[0])
    return lambda elements: module.redact_xml(XML.format(elements), raw, redact(raw))


def test_an_xml_of_another_machine_is_refused(redacted):
    with pytest.raises(ValueError, match="serial 1659999999999 of the XML is not in the snapshot"):
        redacted("<serial>1659999999999</serial>")


def test_a_name_in_an_element_that_is_not_known_is_refused(redacted):
    with pytest.raises(ValueError, match="the XML shows 1653724055003 where no element is known to name anything"):
        redacted("<riser_label>U7 1653724055003</riser_label>")


@pytest.mark.parametrize(
    ("raw", "other"),
    [
        ("<chassis_serial_number>1821225000019</chassis_serial_number>", "<chassis_serial_number>CHASSIS-00</chassis_serial_number>"),
        ("<gpu_fabric_guid>0x7a1b</gpu_fabric_guid>", "<gpu_fabric_guid>0x0000000000000000</gpu_fabric_guid>"),
        ("<host_id>N/A</host_id>", "<host_id>N/A</host_id>"),
        (
            "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>",
            "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>",
        ),
        ("<pdi>0xa</pdi><pdi>0xb</pdi><pdi>0xa</pdi>", "<pdi>0x{0}0</pdi><pdi>0x{0}1</pdi><pdi>0x{0}0</pdi>".format("0" * 15)),
    ],
)
def test_what_only_nvidia_smi_names_is_numbered(redacted, raw, other):
    assert other in redacted(raw)


@pytest.mark.parametrize("name", REAL_NAMES)
def test_what_is_committed_has_nothing_left_to_replace(name):
    snapshot = read_snapshot(REAL / f"{name}.json")
    assert redact(snapshot) == snapshot
