# Prepare a GPU machine that has torch and no network, in a shell of its own: . tools/gpu/prepare.sh FOLDER-OF-WHEELS
# The scripts beside this one call .venv/bin/python and .venv/bin/gpu-acceptance; here both are the machine's own Python.
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$1"/*.whl || exit
export PYTHONPATH=/tmp/site:$PWD/src NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
mkdir -p .venv/bin
printf '#!/bin/sh\nexec python3 "$@"\n' >.venv/bin/python
printf '#!/bin/sh\nexec python3 -m gpu_acceptance "$@"\n' >.venv/bin/gpu-acceptance
chmod +x .venv/bin/python .venv/bin/gpu-acceptance
touch .venv/.ready # `make accept` would install
