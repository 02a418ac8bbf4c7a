"""Readings of real GPUs agree with `nvidia-smi -q -x` of the same seconds, field by field."""

import dataclasses
from xml.etree import ElementTree

import pytest
from snapshots import REAL, REAL_NAMES, changed, leaves, real, snapshot_of

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
def test_each_field_that_differs_is_named_with_both_values(path):
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


@pytest.mark.parametrize("path", sorted(OURS))
def test_each_value_that_only_nvidia_smi_has_is_told(path):
    missing = {"missing": "not permitted", "detail": "x"}
    found = differences(gpus_of(changed(real("h200x8-idle"), f"node.gpus.gpus.3.{path}", missing)), xml_of("h200x8-idle"))
    was_missing = isinstance(attribute(gpus_of(real("h200x8-idle")).gpus[3], path), Missing)
    assert len(found) == (0 if was_missing else 1)
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
