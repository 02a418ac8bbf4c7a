"""Snapshots of real GPUs: they agree with `nvidia-smi -q -x`, field by field, also once no name is left in either."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from snapshots import REAL, REAL_NAMES, changed, leaves, real, snapshot_of

from gpu_acceptance.cli.snapshot_file import decode, read_snapshot, redact
from gpu_acceptance.inventory.answer import Missing, Why
from tools.gpu.nvidia_smi import COMPARED, FIELDS, NOT_COMPARED, NOT_SHOWN, differences


def xml_of(name):
    return (REAL / f"{name}.xml").read_text(encoding="utf-8")


def gpus_of(plain):
    return snapshot_of(plain).node.gpus


@pytest.mark.parametrize("name", REAL_NAMES)
def test_a_snapshot_of_real_gpus_says_what_nvidia_smi_says(name):
    assert differences(gpus_of(real(name)), xml_of(name)) == []


# --- every value that differs is told -------------------------------------------------------------------------------------------

OTHER = {bool: lambda value: not value, str: lambda value: f"{value}x", int: lambda value: value + 10**11, float: lambda value: value + 500}
OURS = {one.ours for one in FIELDS}


@pytest.mark.parametrize("path", sorted(OURS))
def test_each_field_that_differs_or_that_only_nvidia_smi_has_is_named_with_both_values(path):
    value = attribute(gpus_of(real("h200x8-idle")).gpus[3], path)
    if isinstance(value, Missing):
        other, shown = 0 if path.startswith("retired_pages.num") else False if path.startswith("retired") else "healthy", "nothing"
    elif isinstance(value, tuple):
        other, shown = ["hw slowdown"], "('gpu idle',)"
    else:
        other, shown = OTHER[type(value)](value), ""
    (told,) = differences(gpus_of(changed(real("h200x8-idle"), f"node.gpus.gpus.3.{path}", other)), xml_of("h200x8-idle"))
    assert told.startswith(f"GPU 3, {path}: nvidia-smi says {shown}")
    assert told.endswith(f", the snapshot {tuple(other) if isinstance(other, list) else other}")
    missing = {"missing": "not permitted", "detail": "x"}
    found = differences(gpus_of(changed(real("h200x8-idle"), f"node.gpus.gpus.3.{path}", missing)), xml_of("h200x8-idle"))
    assert len(found) == (0 if isinstance(value, Missing) else 1)
    assert all(told.endswith(", the snapshot not permitted (x)") for told in found)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("driver", "570.86.15", "the node, driver: nvidia-smi says 580.159.04, the snapshot 570.86.15"),
        ("cuda", "12.8", "the node, cuda: nvidia-smi says 13.0, the snapshot 12.8"),
        ("gpus", [], "the node, number of GPUs: nvidia-smi says 8, the snapshot 0"),
        ("gpus.0.processes", [], "GPU 0, processes: nvidia-smi says (GpuProcess(pid=1607, "),
        ("gpus.0.processes.0.pid", 1608, "GPU 0, processes: nvidia-smi says (GpuProcess(pid=1607, "),
        ("gpus.0.processes.0.used_bytes", 1 << 40, "GPU 0, processes: nvidia-smi says (GpuProcess(pid=1607, "),
        (
            "gpus.0.throttling.sw_power_cap_ns",
            10_212_222,
            "GPU 0, throttling.sw_power_cap_ns: nvidia-smi says 9212250000, the snapshot 10212222",
        ),
        ("gpus.0.throttling.reasons", ["hw slowdown"], "GPU 0, throttling.reasons: nvidia-smi says ('sw power cap',)"),
    ],
)
def test_of_a_loaded_node_what_differs_is_told(path, value, says):
    (told,) = differences(gpus_of(changed(real("h200x8-loaded"), f"node.gpus.{path}", value)), xml_of("h200x8-loaded"))
    assert told.startswith(says)


def test_under_load_the_power_limit_comes_and_goes():
    plain = changed(real("h200x8-loaded"), "node.gpus.gpus.0.throttling.reasons", [])
    assert differences(gpus_of(plain), xml_of("h200x8-loaded")) == []


def test_without_nvml_the_number_of_gpus_differs():
    reading = dataclasses.replace(gpus_of(real("h200x8-idle")), gpus=Missing(Why.NOT_THERE, "x"))
    assert differences(reading, xml_of("h200x8-idle")) == ["the node, number of GPUs: nvidia-smi says 8, the snapshot not there (x)"]


def test_a_unit_that_nvidia_smi_never_showed_is_refused():
    with pytest.raises(ValueError, match=r"'700.00 kW' is not in W"):
        differences(gpus_of(real("h200x8-idle")), xml_of("h200x8-idle").replace("700.00 W", "700.00 kW"))


# --- nothing is left out unseen -------------------------------------------------------------------------------------------------


def test_each_value_of_a_gpu_is_compared_or_cannot_be():
    gpu = real("h200x8-loaded")["node"]["gpus"]["gpus"][0]
    paths = {path.split(".")[0] if path.split(".")[0] in {*NOT_SHOWN, "processes"} else path for path in leaves(gpu)}
    assert paths == OURS | NOT_SHOWN.keys() | {"processes"}


def below(element, path=""):
    parts = list(element)
    for part in parts:
        yield from below(part, f"{path}/{part.tag}".lstrip("/"))
    if not parts:
        yield path


@pytest.mark.parametrize("name", REAL_NAMES)
def test_each_value_that_nvidia_smi_shows_is_compared_or_said_not_to_be(name):
    shown = {leaf for gpu in ElementTree.fromstring(xml_of(name)).findall("gpu") for leaf in below(gpu)} - {"processes"}
    left_out = {path for paths in NOT_COMPARED.values() for path in paths}
    assert {leaf for leaf in shown - COMPARED if not any(f"{leaf}/".startswith(f"{path}/") for path in left_out)} == set()
    assert {path for path in COMPARED if path in left_out} == set()


def test_what_is_said_not_to_be_compared_is_shown():
    shown = {leaf for name in REAL_NAMES for gpu in ElementTree.fromstring(xml_of(name)).findall("gpu") for leaf in below(gpu)}
    left_out = {path for paths in NOT_COMPARED.values() for path in paths}
    assert {path for path in left_out if not any(f"{leaf}/".startswith(f"{path}/") for leaf in shown)} == {"supported_clocks"}


def attribute(gpu, path):
    for name in path.split("."):
        gpu = getattr(gpu, name)
    return gpu


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
    for other, raw in names.items():
        texts = [text.replace(other, raw) for text in texts]
    return *texts, [re.sub("<.*?>|<", "", raw) for raw in names.values()]


@pytest.mark.slow
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
