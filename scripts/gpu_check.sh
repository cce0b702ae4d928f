#!/usr/bin/env bash
# Checks Weft on a machine with a GPU, measures it next to PyTorch, and writes everything to a
# folder. The last line reads "N passed, N failed, N skipped"; without a GPU one line says so and
# the status is 77.
# usage: scripts/gpu_check.sh --out DIR [--only PART,...] [--rows PART,...] [--models NAME,...]
#                             [--dtypes bf16,f32] [--arch 90a-real] [--jobs N]
#   build    a release with CUDA, in build/gpu, for all architectures or for --arch
#   ptx      the instruction wrappers compared with their host versions (tests/cuda/test_ptx.cpp)
#   native   the kernel tests on the GPU
#   ctest    all tests
#   train    20 steps on the CPU and on the GPU: losses within 1e-4 in f32, 1e-2 in bf16
#   ranks    groups of ranks that share the GPU, and one rank over NCCL; then the same for training
#   rows     bench_gpu and bench/peers/gpu_ops.py in turns; --rows names parts of bench_gpu
#   steps    bench_step and bench/peers/gpt.py in turns, for each of --models and --dtypes
#   report   the table of the results in --out: bench/peers/gpu_report.py
#   sanitizer  compute-sanitizer on the kernel tests; slow, runs only when named
# PYTHON names the interpreter with PyTorch. Without PyTorch, the peers are skipped.
#
# On a machine without Debian's packages, unpack them into a folder and name it in WEFT_DEPS. On any
# machine with Debian 12:
#   mkdir deps && cd deps
#   apt-get download libdnnl-dev libdnnl2 opencl-c-headers opencl-clhpp-headers ocl-icd-opencl-dev \
#     ocl-icd-libopencl1 libcli11-dev libtomlplusplus-dev libtomlplusplus3 \
#     doctest-dev libxtensor-dev xtl-dev nlohmann-json3-dev ninja-build
#   for file in *.deb; do dpkg -x "$file" .; done && rm *.deb usr/lib/*/*.a
#   WEFT_DEPS=$PWD scripts/gpu_check.sh --out DIR
set -euo pipefail
invoked_in=$PWD
cd "$(dirname "$0")/.."

fail() { echo "gpu_check: $1" >&2; exit 2; }

all="build ptx native ctest train ranks rows steps report"
only="" out="" rows="" arch="" jobs=$(nproc)
models=124m-b64-t1024,124m-b16-t1024,124m-b4-t1024,124m-b1-t1024
dtypes=bf16
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case "$1" in
    --out) out=$2 ;;
    --only) only=${2//,/ } ;;
    --rows) rows=$2 ;;
    --models) models=$2 ;;
    --dtypes) dtypes=$2 ;;
    --arch) arch=$2 ;;
    --jobs) jobs=$2 ;;
    *) fail "unknown option $1; known: --out, --only, --rows, --models, --dtypes, --arch, --jobs" ;;
  esac
  shift 2
done
for name in $only; do
  case " $all sanitizer " in
    *" $name "*) ;;
    *) fail "--only: one of $all sanitizer, got $name" ;;
  esac
done
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU' && ! [ -e /dev/nvidia0 ]; then
  echo "gpu_check: no GPU here (neither nvidia-smi -L nor /dev/nvidia0); nothing was checked"
  exit 77
fi
[ -n "$out" ] || fail "--out names the folder for the results"
case "$out" in /*) ;; *) out=$invoked_in/$out ;; esac
mkdir -p "$out"

. scripts/parts.sh
python=${PYTHON:-python3}
build=build/gpu
bin=$build/bin
deps=${WEFT_DEPS:-}
if [ -n "$deps" ]; then
  deps=$(realpath "$deps")
  export PATH=$deps/usr/bin:$PATH
  export CMAKE_PREFIX_PATH=$deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  libraries=$(find "$deps/usr/lib" -maxdepth 1 -name '*-linux-gnu' | head -n 1)
  export LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# Save the results with the logs, whatever happens.
trap 'mkdir -p "$out/logs" && cp -r "$logs"/. "$out/logs/" || true' EXIT

wanted() {  # wanted PART
  case " ${only:-$all} " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

configure() {
  local generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  # CMake searches the architecture's library folder below a prefix only if told to.
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=ON \
    ${arch:+-DCMAKE_CUDA_ARCHITECTURES="$arch"} -DWEFT_TESTS=ON -DWEFT_EXAMPLES=ON -DWEFT_BENCH=ON \
    ${deps:+-DCMAKE_LIBRARY_ARCHITECTURE="$(basename "$libraries")"}
}

has_torch() { "$python" -c 'import torch' 2>/dev/null; }

# ops TURN MODE: PyTorch's rows for those of weft-1.json.
ops() {
  "$python" bench/peers/gpu_ops.py --names "$out/weft-1.json" --mode "$2" --json "$out/$2-$1.json"
}

compare_rows() {
  local turn mode
  for turn in 1 2; do
    check "rows-weft-$turn" "$bin/bench_gpu" ${rows:+--only "$rows"} --json "$out/weft-$turn.json"
    has_torch || continue
    for mode in eager cudnn compiled; do
      # Compile only once.
      [ "$mode" = compiled ] && [ "$turn" = 2 ] && continue
      check "rows-$mode-$turn" ops "$turn" "$mode"
    done
  done
}

# step SIDE COMMAND...: appends the run's line of JSON to steps.jsonl.
step() {
  local side=$1 line
  shift
  line=$("$@" | tail -n 1) || return 1
  echo "$line"
  printf '{"side": "%s", "run": %s}\n' "$side" "$line" >>"$out/steps.jsonl"
}

compare_steps() {
  local model dtype turn run
  for dtype in ${dtypes//,/ }; do
    for model in ${models//,/ }; do
      run=(--model "$model" --device cuda --dtype "$dtype" --warmup 30 --steps 100)
      for turn in 1 2; do
        check "steps-$model-$dtype-weft-$turn" step weft "$bin/bench_step" "${run[@]}"
        check "steps-$model-$dtype-weft-graph-$turn" step "weft, graph" "$bin/bench_step" "${run[@]}" \
          --graph on
        if [ "$turn" = 2 ] || ! has_torch; then continue; fi
        local peer=("$python" bench/peers/gpt.py "${run[@]}")
        check "steps-$model-$dtype-eager" step eager "${peer[@]}"
        check "steps-$model-$dtype-compiled" step compiled "${peer[@]}" --compile
        check "steps-$model-$dtype-cudnn" step "compiled, cuDNN attention" "${peer[@]}" --compile \
          --sdpa CUDNN_ATTENTION
        check "steps-$model-$dtype-graphs" step "compiled, CUDA graphs" "${peer[@]}" \
          --compile reduce-overhead
      done
    done
  done
}

nvidia-smi -q -d POWER,CLOCK,TEMPERATURE >"$out/nvidia-smi.txt" || true
"$python" bench/peers/gpu_report.py --machine "$out/machine.json"
if wanted build; then
  part gpu-configure configure || give_up gpu-configure
  part gpu-build cmake --build "$build" -j "$jobs" || give_up gpu-build
fi
if wanted ptx; then check ptx "$bin/gpu_tests" '--source-file=*cuda/test_ptx.cpp'; fi
if wanted native; then
  check native "$bin/gpu_tests"
  grep -h 'MESSAGE: skipped: ' "$logs/native.log" | sed 's/.*MESSAGE: /       /' || true
fi
if wanted ctest; then
  tests gpu-ctest ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error --timeout 600
fi
if wanted train; then check train env WEFT_BIN="$bin" "$python" tests/cli/gpu_training.py; fi
if wanted ranks; then
  check ranks-groups "$bin/gpu_tests" '--source-file=*cuda/test_thread_ranks.cpp,*cuda/test_nccl.cpp'
  check ranks-train env WEFT_BIN="$bin" "$python" tests/cli/gpu_training.py --ranks
fi
if wanted rows; then compare_rows; fi
if wanted steps; then compare_steps; fi
case " $only " in
  *" sanitizer "*)
    for tool in memcheck racecheck synccheck; do
      check "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/gpu_tests"
    done
    ;;
esac
if wanted report; then check report "$python" bench/peers/gpu_report.py "$out" --file "$out/report.md"; fi
finish
