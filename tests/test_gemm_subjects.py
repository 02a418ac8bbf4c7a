"""The subjects of matrix products: measures as the profile sizes them, why there is no figure, and that one wrong element is a miss."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fixtures.gemm import Gemm
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure.gemm import rates
from gpu_acceptance.measure.gemm.operands import square
from gpu_acceptance.measure.pace import Pace
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, Level
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.verdict.rows import make_row
from tests.judging import make_job, make_record, shipped_profile

CPU, GPU = torch.device("cpu"), torch.device("cuda", 3)
PARAMETERS = {
    "gemm.size": 32,
    "gemm_dtypes.size": 16,
    "gemm.preheat_s": 0.01,
    "gemm.block_s": 0.01,
    "gemm.idle_s": 0.0,
    "gemm.num_iterations": 4,
    "gemm.flush_bytes": 4096,
    "gemm.num_blocks": 3,
}
RESULT = SimpleNamespace(dtype="bf16", tflop_per_s=655.775, begin_s=100.0, end_s=103.9)
EFFICIENCY = "gemm.bf16.cycle_efficiency"


def make_gemm(device=CPU, subject="gemm", seen=None, recorded=None):
    def record(metric, value, unit):
        (recorded if recorded is not None else {})[metric] = (value, unit)

    return Gemm(subject, SimpleNamespace(device=device), PARAMETERS.__getitem__, lambda begin_s, end_s: seen, record, Pace({}))


def telemetry(held_s=3.9, **means):
    levels = {name: Level(mean=mean, low=mean, high=mean, held_s=held_s) for name, mean in means.items()}
    missing = {} if "sm_clock_mhz" in means else {"sm_clock_mhz": "not supported"}
    return GpuTelemetry(
        length_s=3.9,
        seen_s=3.9,
        num_samples=78,
        longest_gap_s=0.05,
        levels=levels,
        throttled_s={},
        reasons_held_s=3.9,
        missing=missing,
    )


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: (9, 0)}.get)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {GPU: SimpleNamespace(multi_processor_count=132)}.get)


@pytest.mark.parametrize(("subject", "size"), [("gemm", 32), ("gemm_dtypes", 16)])
def test_each_subject_multiplies_at_its_size(subject, size):
    gemm = make_gemm(subject=subject)
    for result in (gemm.sustained("fp32"), gemm.burst("fp32"), gemm.best_shape("fp32")):
        assert result.shape == square(size)
        assert result.num_wrong == 0


def test_on_a_gpu_the_best_shape_is_that_of_all_candidates_as_mamf_finder_times_them(monkeypatch):
    asked = {}
    monkeypatch.setattr(rates, "measure_best_shape", lambda dtype, **options: asked.update(options))
    monkeypatch.setitem(PARAMETERS, "gemm.size", 8192)
    base = shipped_profile("base").parameters
    for name in ("gemm.num_iterations", "gemm.flush_bytes"):
        monkeypatch.setitem(PARAMETERS, name, base[name])
    make_gemm(GPU).best_shape("fp8")
    timing = {"flush_bytes": 2**28, "num_warmup": 50, "num_iterations": 100}
    assert asked.pop("hopeless_s")(1.0) == float("inf")  # nothing has a floor here
    assert asked == {"device": GPU, "candidates": rates.CANDIDATES["fp8"], **timing}


def test_what_a_device_lacks_is_said():
    gemm = make_gemm()
    assert gemm.lack("fp32") is None
    assert gemm.lack("tf32") == Missing(Why.NOT_SUPPORTED, "tf32 is a mode of the tensor cores of a GPU; a CPU has none")


@pytest.mark.usefixtures("hopper")
def test_the_efficiency_is_of_the_mean_clock_which_is_shown_beside_it():
    recorded = {}
    seen = telemetry(sm_clock_mhz=1447.124, power_w=690.0, gpu_temperature_c=63.0)
    assert make_gemm(GPU, seen=seen, recorded=recorded).cycle_efficiency(RESULT) == pytest.approx(0.83814, abs=1e-5)
    assert recorded == {
        "gemm.bf16.sm_clock": (1447.124, "MHz"),
        "gemm.bf16.power": (690.0, "W"),
        "gemm.bf16.temperature": (63.0, "C"),
    }


BLIND = {  # by what is wrong: what is seen of the GPU, and what is said of the efficiency
    "nothing": (None, "not there (no telemetry of 3.90 s: there is no GPU, or it is less than a second)"),
    "no clock": (telemetry(power_w=690.0), "not there (not supported)"),
    "a clock of half the time": (telemetry(2.0, sm_clock_mhz=1447.0), "unreadable (sm_clock_mhz is known for 2.0 of 3.9 s)"),
    "a clock of 0": (
        telemetry(sm_clock_mhz=0.0),
        "not there (at 0 MHz: no datasheet gives the FLOP per clock of this GPU in bf16, or it has no clock)",
    ),
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("what", BLIND)
def test_without_a_clock_there_is_no_efficiency_and_no_pass(what):
    seen, said = BLIND[what]
    found = make_gemm(GPU, seen=seen).cycle_efficiency(RESULT)
    assert str(found) == said
    profile, job = shipped_profile("h200-sxm"), make_job(1)
    record = make_record(0, figures=(make_figure(EFFICIENCY, found, "relative", judged=True),))
    row = make_row("acceptance/test_gemm.py::test_sustained", (Attempt(number=1, ranks=(record,)),), profile, job, {}, 60.0)
    statuses = {judgement.bound: judgement.status for judgement in row.judgements}
    assert statuses == {"at_least": Status.INVALID, "peers": Status.NOT_APPLICABLE}  # one rank has none
    assert row.outcome is Outcome.ERROR
    assert f"{EFFICIENCY} has no value: {said}, need >= 0.793 relative" in row.message


def test_a_gpu_that_no_datasheet_tells_of_has_no_efficiency(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: (10, 0)}.get)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {GPU: SimpleNamespace(multi_processor_count=148)}.get)
    found = make_gemm(GPU, seen=telemetry(sm_clock_mhz=1800.0)).cycle_efficiency(RESULT)
    assert str(found) == "not there (at 1800 MHz: no datasheet gives the FLOP per clock of this GPU in bf16, or it has no clock)"


def test_a_gpu_that_lacks_a_dtype_is_no_pass_where_no_profile_declares_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: (8, 6)}.get)
    lack = make_gemm(GPU).lack("fp8")
    for name, status in (("h200-sxm", Status.INVALID), ("a10g", Status.NOT_APPLICABLE)):
        record = make_record(0, figures=(make_figure("gemm.fp8.best", lack, "TFLOP/s", judged=True),))
        profile = shipped_profile(name)
        row = make_row(
            "acceptance/test_gemm.py::test_best_shape[fp8]", (Attempt(number=1, ranks=(record,)),), profile, make_job(1), {}, 60.0
        )
        assert [judgement.status for judgement in row.judgements] == [status]
    assert str(lack) == "not supported (fp8 needs compute capability 8.9, cuda:3 has 8.6)"


# --- one wrong element ---------------------------------------------------------------------------------------------------------

VALIDATIONS = [
    ("gemm", "sustained", "bf16"),
    ("gemm", "burst", "bf16"),
    *(("gemm", "best_shape", dtype) for dtype in ("bf16", "fp8")),
    *(("gemm_dtypes", "sustained", dtype) for dtype in ("fp16", "fp32", "fp64", "fp8")),
    *(("gemm_dtypes", "best_shape", dtype) for dtype in ("fp16", "fp32", "fp64")),
]


def run(subject, name, dtype):
    """The row of one validation of `acceptance/` on this CPU, by the profile for it."""
    path = Path(__file__).parents[1] / "acceptance" / f"test_{subject}.py"
    spec = importlib.util.spec_from_file_location(f"run_{subject}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    figures = []

    def check(metric, value, unit, spread=None):
        figures.append(make_figure(metric, value, unit, judged=True, spread=spread))

    given = {"gemm": make_gemm(subject=subject), "check": check, "record": lambda *_: None, "dtype": dtype}
    validation = getattr(module, f"test_{name}")
    validation(**{name: given[name] for name in validation.__code__.co_varnames[: validation.__code__.co_argcount]})
    attempt = Attempt(number=1, ranks=(make_record(0, figures=tuple(figures)),))
    profile, job = shipped_profile("cpu"), make_job(1, has_gpus=False)
    return make_row(f"acceptance/test_{subject}.py::test_{name}[{dtype}]", (attempt,), profile, job, {}, 60.0)


@pytest.mark.parametrize(("subject", "name", "dtype"), VALIDATIONS)
def test_one_wrong_element_of_the_whole_output_is_a_miss_by_name(subject, name, dtype, monkeypatch, pytestconfig):
    for marker in ("no_group", "drill"):
        pytestconfig.addinivalue_line("markers", f"{marker}: of the plugin, which is not loaded here")
    assert run(subject, name, dtype).outcome is Outcome.PASSED
    for function in ("mm", "_scaled_mm"):
        monkeypatch.setattr(torch, function, spoiled(getattr(torch, function)))
    row = run(subject, name, dtype)
    assert row.outcome is Outcome.FAILED
    assert [judgement.metric for judgement in row.judgements if judgement.status is Status.MISSED] == [f"{subject}.{dtype}.wrong"]
    assert f"{subject}.{dtype}.wrong = 1 elements, need <= 0 elements [base.yaml: policy: a product of integers is exact" in row.message


def spoiled(multiply):
    """As it would be on a GPU that errs in the last bit of the last element."""

    def run_and_spoil(*operands, out, **options):
        multiply(*operands, out=out, **options)
        out.view(torch.uint8)[-1, -out.element_size()] ^= 1
        return out

    return run_and_spoil
