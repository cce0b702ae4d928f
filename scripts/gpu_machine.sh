# Sourced by gpu_check.sh: what the machine has, and the build for it.
#
# On a machine without Debian's packages, unpack them into a folder and name it in WEFT_DEPS. On any
# machine with Debian 12:
#   mkdir deps && cd deps
#   apt-get download libdnnl-dev libdnnl2 opencl-c-headers opencl-clhpp-headers ocl-icd-opencl-dev \
#     ocl-icd-libopencl1 libcli11-dev libtomlplusplus-dev libtomlplusplus3 \
#     doctest-dev libxtensor-dev xtl-dev nlohmann-json3-dev ninja-build
# They are small enough to travel packed; there:
#   for file in *.deb; do dpkg -x "$file" .; done && rm *.deb usr/lib/*/*.a
# shellcheck disable=SC2034,SC2154 # variables of gpu_check.sh and gpu_parts.sh
python=${PYTHON:-python3}
build=build/gpu
bin=${emulated:-$build/bin}
deps=${WEFT_DEPS:-}
if [ -n "$deps" ]; then
  deps=$(realpath "$deps")
  export PATH=$deps/usr/bin:$PATH
  export CMAKE_PREFIX_PATH=$deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  libraries=$(find "$deps/usr/lib" -maxdepth 1 -name '*-linux-gnu' | head -n 1)
  export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# Importing PyTorch takes seconds: once per call.
torch=""
has_torch() {
  if [ -z "$torch" ]; then
    torch=no
    if "$python" -c 'import torch' 2>/dev/null; then torch=yes; fi
  fi
  [ "$torch" = yes ]
}

# The code for the card by the compiler pass of a release: sm_90a for capability 9.0.
card_code() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
  case "$capability" in
    9.0) echo sm_90a ;;
    [0-9]*.[0-9]) echo "sm_${capability/./}" ;;
    *) echo all ;;
  esac
}

# The folder of the CUDA toolkit, in cmake/cuda.cmake's order.
toolkit() {
  local nvcc
  nvcc=${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc")}
  dirname "$(dirname "$(realpath -m "$nvcc")")"
}

# Folders of NVIDIA's wheels (nvidia/cu13, nvidia/cublas, nvidia/nccl, ...), which PyTorch brings.
wheel_folders() {
  "$python" -c '
import glob, nvidia
print(*(folder for path in nvidia.__path__ for folder in sorted(glob.glob(path + "/*"))), sep="\n")' 2>/dev/null || true
}

# The macros of a header; fails if the compiler does not find it.
macros_of() {
  echo "#include <$1>" | "${CXX:-c++}" -x c++ -dM -E -I"$(toolkit)/include" - 2>/dev/null
}

# Where the toolkit has no cuBLAS or NCCL, those of the wheels: the compiler finds the headers, and
# programs find the libraries in one folder of links, WEFT_CUDA_LIBS.
find_cuda() {
  local folder header name links major
  links=$(realpath -m "$build/cuda-libs")
  local -a wheels
  mapfile -t wheels < <(wheel_folders)
  for header in cublasLt.h nccl.h; do
    if macros_of "$header" >/dev/null; then continue; fi
    for folder in "${wheels[@]}"; do
      [ -f "$folder/include/$header" ] || continue
      # Searched after the folders that the build names.
      export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$folder/include
      echo "$header: $folder/include"
      break
    done
  done
  [ -z "${WEFT_CUDA_LIBS:-}" ] || return 0
  major=$(macros_of cublasLt.h | sed -n 's/^#define CUBLAS_VER_MAJOR //p') || true
  for name in "libcublasLt.so.$major" libnccl.so.2; do
    "$python" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$name" 2>/dev/null && continue
    for folder in "$(toolkit)/lib64" "${wheels[@]/%//lib}"; do
      [ -f "$folder/$name" ] || continue
      mkdir -p "$links"
      ln -sf "$folder/$name" "$links/"
      export WEFT_CUDA_LIBS=$links
      echo "$name: $folder"
      break
    done
  done
}

# Configures build/gpu for --arch.
configure() {
  local code=${arch:-$(card_code)} generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  if [ "$code" = all ]; then code="sm_80;sm_90a;compute_80"; fi
  # CMake searches the architecture's library folder below a prefix only if told to.
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON \
    -DWEFT_CUDA_CODE="$code" -DWEFT_TESTS=ON -DWEFT_EXAMPLES=ON -DWEFT_BENCH=ON \
    ${deps:+-DCMAKE_LIBRARY_ARCHITECTURE="$(basename "$libraries")"}
}
