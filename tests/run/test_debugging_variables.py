import pytest

from gpu_acceptance.run.debugging_variables import VARIABLES, find_debugging


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
        ("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight-systems/target-linux-x64/libToolsInjection64.so"),
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


@pytest.mark.parametrize("off", ["", "0", "OFF", "off", "no", "False"])
def test_what_says_off_is_off(off):
    assert find_debugging({name: off for one in VARIABLES for name in one.names}) is None


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
        },
    ],
)
def test_what_does_no_harm_is_no_reason(environ):
    assert find_debugging(environ) is None
