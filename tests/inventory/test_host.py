import socket

import pytest

from gpu_acceptance.inventory import system


def test_the_host_has_a_name():
    assert system.hostname()


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": "gpu-07.example"}, "gpu-07.example"),
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": "x" * 300}, "x" * 253),
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": ""}, socket.gethostname()),
        ({"NODE_NAME": "gpu-07"}, socket.gethostname()),  # of whatever else calls something so
    ],
)
def test_a_pod_has_the_name_of_its_node(variables, name):
    assert system.hostname(variables) == name


def test_the_chassis_serial_is_what_the_firmware_says(tmp_path):
    file = tmp_path / "class" / "dmi" / "id" / "product_serial"
    file.parent.mkdir(parents=True)
    file.write_text("S510219X4\n", encoding="utf-8")
    assert system.chassis_serial(tmp_path) == "S510219X4"


def test_a_serial_nobody_may_read_is_empty(tmp_path):
    (tmp_path / "class" / "dmi" / "id" / "product_serial").mkdir(parents=True)
    assert system.chassis_serial(tmp_path) == ""
    assert system.chassis_serial(tmp_path / "nowhere") == ""


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        ("127.0.0.1 localhost\n127.0.1.1\tNAME.example NAME  # by the installer\n", "127.0.1.1"),
        ("::1 localhost NAME\n", "::1"),
        ("127.0.1.1 NAME\n192.0.2.7 NAME\n", ""),
        ("127.0.0.1 localhost\n192.0.2.7 NAME\n# 127.0.1.1 NAME\n127.0.1.1 NAMES\n", ""),
        ("", ""),
    ],
)
def test_a_node_whose_own_name_is_a_loopback_address(tmp_path, hosts, address):
    file = tmp_path / "hosts"
    file.write_text(hosts.replace("NAME", socket.gethostname()))
    assert system.own_loopback_address(file) == address
    assert system.own_loopback_address(tmp_path / "nowhere") == ""


def test_only_variables_that_change_results_are_kept():
    variables = {"PATH": "/bin", "NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/opt", "MY_NCCL_ALGO": "Tree"}
    assert system.environment(variables) == {"CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/opt", "NCCL_ALGO": "Ring"}


def test_long_and_foreign_values_fit_a_record():
    found = system.environment({"NCCL_A": "x" * 5000, "NCCL_B": "\udcff"})
    assert len(found["NCCL_A"]) <= system.MAX_VALUE
    assert found["NCCL_B"].encode("utf-8")


def test_the_real_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("NCCL_TEST_VARIABLE", "1")
    assert system.environment()["NCCL_TEST_VARIABLE"] == "1"


@pytest.mark.parametrize(
    "name",
    [
        *("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_LOG_LEVEL", "CUDNN_LOGLEVEL_DBG", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
        *("NVIDIA_TF32_OVERRIDE", "TORCHINDUCTOR_MAX_AUTOTUNE", "UCX_TLS", "FI_PROVIDER", "SHARP_COLL_ENABLE_SAT", "MKL_NUM_THREADS"),
    ],
)
def test_a_variable_of_a_library_that_computes_is_kept(name):
    assert system.environment({name: "1"}) == {name: "1"}


def test_variables_of_the_container_toolkit_are_not():
    assert system.environment({"NVIDIA_REQUIRE_CUDA": "cuda>=13.0", "KUBERNETES_PORT": "tcp://192.0.2.1:443"}) == {}
