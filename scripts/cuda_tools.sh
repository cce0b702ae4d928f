#!/usr/bin/env bash
# Prints the folder of cuobjdump and nvdisasm, which scripts/check_sass.py and scripts/hot_path.py find
# by WEFT_CUDA_TOOLS. A toolkit from packages may lack them: takes NVIDIA's wheels to build/cuda-tools.
# usage: export WEFT_CUDA_TOOLS=$(scripts/cuda_tools.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
version=13.5.37  # reads the code of older compilers too
folder=$PWD/build/cuda-tools
bin=$folder/nvidia/cu13/bin
if [ ! -x "$bin/cuobjdump" ] || [ ! -x "$bin/nvdisasm" ]; then
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder" \
    "nvidia-cuda-cuobjdump==$version" "nvidia-cuda-nvdisasm==$version" >&2
fi
echo "$bin"
