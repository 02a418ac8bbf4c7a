import pytest

from gpu_acceptance.run.debugging_variables import debugging_variables, find_debugging


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("NCCL_DEBUG", "trace"),
        ("PYTHONMALLOC", "malloc_debug"),
        ("PYTHONWARNINGS", "default,error::DeprecationWarning"),
        ("MALLOC_PERTURB_", "165"),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.perturb=7"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2:/usr/lib/gcc/x86_64-linux-gnu/12/libasan.so"),
        ("LD_PRELOAD", "/opt/llvm/lib/clang/17/lib/linux/libclang_rt.tsan-x86_64.so"),
        ("LD_PRELOAD", "/opt/nsight-compute/target/linux-desktop-glibc_2_11_3-x64/./libTreeLauncherTargetInjection.so"),
        ("LD_PRELOAD", "/venv/lib/python3.12/site-packages/scalene/libscalene.so"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libeatmydata.so"),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"),  # its file may hold anything
        ("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight-systems/target-linux-x64/libToolsInjection64.so"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("PYTORCH_JIT", "0"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
        ("TORCH_LOGS", "-inductor,+dynamo"),
        ("TORCH_TRACE", "/tmp/trace"),
        ("TORCHINDUCTOR_NAN_ASSERTS", "1"),
        ("TRITON_ALWAYS_COMPILE", "1"),
        ("MLIR_ENABLE_DUMP", "my_kernel"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G"),
        ("CUDA_DISABLE_PERF_BOOST", "1"),
        ("NCCL_PROFILER_PLUGIN", "/opt/libnccl-profiler-inspector.so"),
        ("NVSHMEM_DEBUG", "TRACE"),
        ("PYTHONPERFSUPPORT", "1"),
        ("COVERAGE_PROCESS_CONFIG", ":data:{}"),
    ],
)
def test_a_variable_that_is_on_is_named_with_its_value_and_the_way_out(name, value):
    text = find_debugging({name: value, "PATH": "/bin"})
    assert text.startswith(f"left in the environment from debugging, and no figure under it counts: {name}={value}: ")
    assert text.endswith(f"; unset {name}")


def test_a_variable_that_needs_another_one():
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL: NCCL writes down each call" in find_debugging(
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}
    )
    assert find_debugging({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}) is None


@pytest.mark.parametrize("setting", ["+1y x2", "+0 x0.5", "+2,5y i2,0", "@2020-12-24 20:30:00 x10", "2020-12-24 20:30:00", "%"])
def test_a_clock_of_another_speed(setting):
    text = find_debugging({"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "FAKETIME": setting})
    assert text.endswith(f"FAKETIME={setting}: the clock stands still or runs at another speed; unset FAKETIME")
    assert find_debugging({"FAKETIME": setting}) is None


@pytest.mark.parametrize("setting", ["+1h", "-120", "+2,5y", "@2020-12-24 20:30:00"])
def test_a_clock_that_is_wrong_and_as_fast_is_no_reason(setting):
    assert find_debugging({"LD_PRELOAD": "libfaketime.so.1", "FAKETIME": setting}) is None


_OFF_WITH_0 = [name for one in debugging_variables() for name in one.names if not one.values.fullmatch("0") or one.off.fullmatch("0")]


@pytest.mark.parametrize("off", ["", "0", "OFF", "off", "no", "False"])
def test_a_value_that_says_off_is_off(off):
    assert find_debugging(dict.fromkeys(_OFF_WITH_0, off)) is None


def test_variables_that_0_turns_on():
    assert {name for one in debugging_variables() for name in one.names} - set(_OFF_WITH_0) == {"NVIDIA_TF32_OVERRIDE", "PYTORCH_JIT"}


@pytest.mark.parametrize(
    "environ",
    [
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
            "TORCH_CPP_LOG_LEVEL": "INFO",
            "PYTHONMALLOC": "malloc",
            "PYTHONWARNINGS": "ignore",
        },
        {
            "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
            "GLIBC_TUNABLES": "glibc.malloc.check=0",
            "CUBLASLT_LOG_LEVEL": "1",
            "UCX_LOG_LEVEL": "warn",
            "TORCH_LOGS": "-dynamo, -inductor",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
            "PYTORCH_JIT": "1",
            "NCCL_PROFILER_PLUGIN": "none",
            "NVSHMEM_DEBUG": "WARN",
        },
    ],
)
def test_harmless_variables_are_allowed(environ):
    assert find_debugging(environ) is None
