"""The table of phases in a file: what it may say, and where it may stand."""

import pytest

from gpu_acceptance.thresholds.profile import LimitsError, load_profile
from tests.thresholds.profile_texts import BASE

TABLE = "phases: {first: [gemm, nccl.physics], second: [hbm]}\n"


def test_the_root_decides_the_order_of_all(folder):
    assert list(load_profile("child", folder(base=BASE + TABLE)).phases.items()) == [
        ("first", ("gemm", "nccl.physics")),
        ("second", ("hbm",)),
    ]
    assert load_profile("child", folder(base=BASE)).phases == {}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("{gpu: [hbm], links: [p2p, hbm]}", "['hbm', 'p2p', 'hbm'] names one of them twice"),
        ("{gpu: [HBM]}", "phases.gpu.0"),
        ("{gpu: [hbm.copy.bandwidth]}", "phases.gpu.0"),
        ("{GPU: [hbm]}", "phases.GPU"),
        ("{gpu: hbm}", "phases.gpu (line"),
        ("[gpu]", "a mapping from phases, in the order of a run, to lists of subjects and validations, as in [hbm, nccl.physics]"),
    ],
)
def test_what_is_no_table(folder, table, problem):
    with pytest.raises(LimitsError) as caught:
        load_profile("child", folder(base=f"{BASE}phases: {table}\n"))
    assert str(caught.value).startswith("base.yaml: phases")
    assert problem in str(caught.value)


@pytest.mark.parametrize(("child", "overlays"), [("other", []), ("child", ["site.yaml"])])
def test_no_child_and_no_overlay_has_one(folder, child, overlays):
    other = {"other": f'extends: base\nmatch: {{device_name: "O"}}\n{TABLE}'} if child == "other" else {"site": TABLE}
    directory = folder(base=BASE + TABLE, **other)
    with pytest.raises(LimitsError, match=r"^(other|site)\.yaml: phases: not allowed here; base\.yaml decides the order of every run$"):
        load_profile(child, directory, [directory / name for name in overlays])
