#!/usr/bin/env bash
# Builds and tests everything. The last line reads "N passed, N failed, N skipped"; the status is 1
# on failure.
# usage: scripts/test.sh              release build with warnings as errors, all tests and checks
#        scripts/test.sh --all-archs  the same, CUDA kernels for all architectures, not only sm_90a
#        scripts/test.sh --sanitize   library, trainer and ranks under AddressSanitizer and UBSan
#        scripts/test.sh --tsan       tests that use threads under ThreadSanitizer
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

jobs=$(nproc)

target=all
build() {  # build PRESET [CMAKE ARGUMENTS]: compiles $target
  local preset=$1
  shift
  part "configure-$preset" cmake --preset "$preset" -DWEFT_WERROR=ON -DWEFT_TESTS=ON "$@" ||
    give_up "configure-$preset"
  part "build-$preset" cmake --build --preset "$preset" --target "$target" -j "$jobs" || give_up "build-$preset"
}

ctest_in() {  # ctest_in PRESET [CTEST ARGUMENTS]
  local preset=$1
  shift
  # One more than processors: some tests wait longer than they compute.
  tests "ctest-$preset" ctest --test-dir "build/$preset" -j "$((jobs + 1))" --output-on-failure \
    --no-tests=error --timeout 600 "$@"
}

part setup scripts/setup.sh all || give_up setup
use_ccache

case "${1:-}" in
  "" | --all-archs)
    code="sm_90a;compute_80"
    if [ "${1:-}" = --all-archs ]; then code="sm_80;$code"; fi
    build release -DWEFT_EXAMPLES=ON -DWEFT_BENCH=ON -DWEFT_CUDA=AUTO -DWEFT_CUDA_CODE="$code" \
      -DWEFT_PTXAS_REPORT=ON
    rm -f build/release/launched_kernels.txt
    ctest_in release
    check format scripts/check_format.sh
    check includes scripts/check_includes.py
    check ops scripts/check_ops.py --check
    check readme scripts/check_readme.py
    check architecture scripts/draw_architecture.py --check
    check faults scripts/mutate.py --check
    check patches scripts/check_patches.py
    check kernels scripts/check_kernels.py build/release
    check registers scripts/check_registers.py --check build/release
    check sass scripts/check_sass.py --check build/release
    check hot-path scripts/hot_path.py --check build/release
    check install scripts/check_install.sh
    check api-reference scripts/api_reference.sh
    part compile-time scripts/check_compile_time.sh && cat build/logs/compile-time.log
    part size scripts/size.py && cat build/logs/size.log
    ;;
  --sanitize)
    export ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
    build asan -DWEFT_EXAMPLES=ON -DWEFT_MPI=ON -DWEFT_BENCH=OFF -DWEFT_CUDA=EMULATE
    ctest_in asan -LE long
    ;;
  --tsan)
    export TSAN_OPTIONS=halt_on_error=1
    target=thread_tests
    build tsan -DWEFT_EXAMPLES=OFF -DWEFT_BENCH=OFF -DWEFT_CUDA=EMULATE
    ctest_in tsan -L 'threads|race'
    ;;
  *)
    echo "test.sh: unknown option $1; known: --all-archs, --sanitize, --tsan" >&2
    exit 2
    ;;
esac
finish
