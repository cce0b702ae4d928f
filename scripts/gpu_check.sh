#!/usr/bin/env bash
# Checks Weft on a machine with a GPU, measures it next to PyTorch, and keeps everything in one
# folder. What is done is not repeated: call it with the same --out until nothing is left.
# usage: scripts/gpu_check.sh --out DIR [--minutes N] [--only PART,...] [--again PART,...]
#                             [--rows NAME,...] [--models NAME,...] [--dtypes bf16,f32]
#                             [--arch CODE] [--jobs N] [--emulated BIN]
# Parts, in this order:
#   build      the programs that the other parts need, with CUDA, in build/gpu
#   ptx        the instruction wrappers compared with their host versions (tests/cuda/test_ptx.cpp)
#   native     the kernel tests on the GPU, one process per file
#   steps      bench_step of the first of --models, step by step and as a graph
#   kernels    the time of each kernel in one such step
#   rows       bench_gpu, then PyTorch (bench/peers/gpu_ops.py) eager and with cuDNN's attention
#   peers      PyTorch (bench/peers/gpt.py) with the first of --models, then bench_step again
#   train      20 steps on the CPU and on the GPU: losses within 1e-4 in f32, 1e-2 in bf16
#   sass       the machine code of the kernels compared with docs/sass.md and bench/gpu/code.json;
#              needs cuobjdump
#   ranks      groups of ranks that share the GPU, and one rank over NCCL; then the same for training
#   models     steps, kernels and peers for the other --models
#   sanitizer  compute-sanitizer on the tests of attention, cross entropy, norms and products
#   turns      the rows of Weft and of PyTorch a second time
#   compiled   the rows of torch.compile, which take longest
#   ctest      all tests; builds them too, so it runs only when named
#
# --minutes N (9): starts nothing that does not fit into the call. At the end, also when it is killed,
# DIR/gpu_check.tar.gz has all results and logs; alone in an empty DIR it is unpacked, and the next
# call goes on from there. The report is DIR/report.md. --again forgets what a part has done; leave it
# out of the calls that go on. --rows names parts of bench_gpu. --arch: as WEFT_CUDA_CODE in cmake/cuda.cmake, or all; by default
# for the card. --emulated BIN: with the programs of a build in BIN for the emulated GPU, at tiny
# sizes; tests/cli/test_gpu_check.py does so. PYTHON names the interpreter with PyTorch; without it
# the peers are skipped. WEFT_DEPS names a folder with unpacked packages: scripts/gpu_machine.sh.
#
# The last line reads "N passed, N failed, N skipped". The status is 1 if a part failed, 75 if work
# is left, 77 without a GPU.
set -euo pipefail
invoked_in=$PWD
cd "$(dirname "$0")/.."

fail() { echo "gpu_check: $1" >&2; exit 2; }

all="build ptx native steps kernels rows peers train sass ranks models sanitizer turns compiled"
only=$all again="" out="" rows="" arch="" jobs=$(nproc) minutes=9 emulated=""
models="" dtypes=bf16
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case "$1" in
    --out) out=$2 ;;
    --minutes) minutes=$2 ;;
    --only) only=${2//,/ } ;;
    --again) again=${2//,/ } ;;
    --rows) rows=$2 ;;
    --models) models=${2//,/ } ;;
    --dtypes) dtypes=${2//,/ } ;;
    --arch) arch=$2 ;;
    --jobs) jobs=$2 ;;
    --emulated) emulated=$2 ;;
    *) fail "unknown option $1; known: --out, --minutes, --only, --again, --rows, --models, --dtypes, --arch, --jobs, --emulated" ;;
  esac
  shift 2
done
for name in $only $again; do
  case " $all ctest " in
    *" $name "*) ;;
    *) fail "--only and --again: one of $all ctest, got $name" ;;
  esac
done
[[ "$minutes" =~ ^[0-9]+$ ]] || fail "--minutes: a whole number, got $minutes"
absolute() { case "$1" in /*) echo "$1" ;; *) echo "$invoked_in/$1" ;; esac; }
if [ -n "$emulated" ]; then
  emulated=$(absolute "$emulated")
elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU' && ! [ -e /dev/nvidia0 ]; then
  echo "gpu_check: no GPU here (neither nvidia-smi -L nor /dev/nvidia0); nothing was checked"
  exit 77
fi
[ -n "$out" ] || fail "--out names the folder for the results"
out=$(absolute "$out")

. scripts/parts.sh
. scripts/gpu_units.sh
. scripts/gpu_machine.sh
. scripts/gpu_parts.sh
begin_call

wanted() {  # wanted PART
  case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}
for name in $all ctest; do
  wanted "$name" || continue
  current=$name
  "part_$name"
done
end_call
