# Sourced by gpu_check.sh: what each part runs. A limit is for a program that hangs: several times
# the expected time, and less than a call.
# shellcheck disable=SC2034,SC2154 # variables of the files sourced before
models=${models:-${emulated:+smoke}}
models=${models:-124m-b64-t1024 124m-b16-t1024 124m-b4-t1024 124m-b1-t1024}
first_model=${models%% *}
# Stems of tests/cuda/test_*.cpp; all others are in the part native.
rank_tests="thread_ranks nccl"
hot_tests="attention cross_entropy cross_entropy_part layer_norm rms_norm mlp gemm"
native_tests=""
for path in tests/cuda/test_*.cpp; do
  stem=${path##*/test_}
  case " ptx $rank_tests " in
    *" ${stem%.cpp} "*) ;;
    *) native_tests="$native_tests ${stem%.cpp}" ;;
  esac
done
kernel_tests=("$bin/gpu_tests") bench_rows=("$bin/bench_gpu") bench_step=("$bin/bench_step")
training=("$python" tests/cli/gpu_training.py)
if [ -n "$emulated" ]; then
  # Seconds instead of minutes: other tests run all kernels in the emulator.
  native_tests="copy causal_conv1d" rank_tests=nccl hot_tests=copy
  kernel_tests=("$bin/emulated_tests") bench_rows=("$bin/bench_gpu_emulated" --quick)
  bench_step=("$bin/bench_step_emulated")
  training+=(--program train_gpt_emulated --small)
else
  find_cuda
fi

# The programs that the parts of this call run.
targets() {
  local name
  for name in $only; do
    case $name in
      ptx | native | sanitizer) echo gpu_tests ;;
      steps | kernels | peers | models) echo bench_step ;;
      rows | turns | compiled) echo bench_gpu ;;
      train) echo train_gpt ;;
      ranks) echo gpu_tests train_gpt ;;
      ctest) echo all ;;
      build | sass) echo weft_cuda ;;
    esac
  done | tr ' ' '\n' | sort -u
}

# Without a line in the state: where nothing has changed it takes a second, and another machine has
# no build yet.
part_build() {
  local names status=0
  [ -z "$emulated" ] || return 0
  mapfile -t names < <(targets)
  if ! part gpu-configure configure; then give_up gpu-configure; fi
  part gpu-build limited 540 cmake --build "$build" -j "$jobs" --target "${names[@]}" || status=$?
  case $status in
    0) ;;
    75) left+=(build) && end_call ;;
    *) give_up gpu-build ;;
  esac
}

test_file() {  # test_file NAME STEM COMMAND...
  local name=$1 stem=$2
  shift 2
  unit "$name" 15 240 "$@" "--source-file=*cuda/test_$stem.cpp"
}

part_ptx() { test_file ptx ptx "${kernel_tests[@]}"; }

part_native() {
  local stem
  for stem in $native_tests; do test_file "native-$stem" "$stem" "${kernel_tests[@]}"; done
}

# Arguments of bench_step and gpt.py. A large model's steps are steady after a few.
run_of() {  # run_of MODEL DTYPE
  local warmup=10 steps=40
  case $1 in
    smoke) warmup=3 steps=6 ;;
    124m-b4-* | 124m-b1-*) warmup=30 steps=100 ;;
  esac
  run=(--model "$1" --device cuda --dtype "$2" --warmup "$warmup" --steps "$steps")
}

# Stores the line of JSON that the unit printed, with the name of its row in the table.
keep_step() {
  local line file=$out/$current/$1.json
  line=$(grep '^{' "$logs/$1.log" | tail -n 1)
  [ -n "$line" ] || { echo "$1: no line of JSON in $logs/$1.log"; return 1; }
  printf '{"side": "%s", "run": %s}\n' "$side" "$line" >"$file.new"
  mv "$file.new" "$file"
}

step() {  # step UNIT NEEDS LIMIT SIDE COMMAND...
  local name=$1 needs=$2 limit=$3 side=$4 keep=keep_step
  shift 4
  unit "$name" "$needs" "$limit" "$@" "${run[@]}"
}

# Each turn in another part, for the comparison with the other sides over time.
weft_steps() {  # weft_steps MODEL TURN
  local dtype run
  for dtype in $dtypes; do
    run_of "$1" "$dtype"
    step "steps-$1-$dtype-weft-$2" 30 180 weft "${bench_step[@]}"
    step "steps-$1-$dtype-weft-graph-$2" 30 180 "weft, graph" "${bench_step[@]}" --graph on
  done
}

kernel_times() {  # kernel_times MODEL
  local dtype run name
  for dtype in $dtypes; do
    run_of "$1" "$dtype"
    name=kernels-$1-$dtype
    unit "$name" 30 180 "${bench_step[@]}" "${run[@]}" --kernels "$out/$current/$name.json"
  done
}

peer_steps() {  # peer_steps MODEL
  local dtype run peer=("$python" bench/peers/gpt.py)
  if ! has_torch; then skip "peers-$1" "$python has no PyTorch"; return; fi
  for dtype in $dtypes; do
    run_of "$1" "$dtype"
    step "steps-$1-$dtype-eager" 45 240 eager "${peer[@]}"
    step "steps-$1-$dtype-compiled" 90 360 compiled "${peer[@]}" --compile
    step "steps-$1-$dtype-cudnn" 90 360 "compiled, cuDNN attention" "${peer[@]}" --compile \
      --sdpa CUDNN_ATTENTION
    step "steps-$1-$dtype-graphs" 90 360 "compiled, CUDA graphs" "${peer[@]}" --compile reduce-overhead
  done
}

part_steps() { weft_steps "$first_model" 1; }
part_kernels() { kernel_times "$first_model"; }
part_peers() {
  peer_steps "$first_model"
  weft_steps "$first_model" 2
}
part_models() {
  local model
  for model in $models; do
    [ "$model" != "$first_model" ] || continue
    weft_steps "$model" 1
    kernel_times "$model"
    peer_steps "$model"
    weft_steps "$model" 2
  done
}

weft_rows() {  # weft_rows TURN
  local rows_file=$out/$current/weft-$1.jsonl
  unit "rows-weft-$1" 30 480 "${bench_rows[@]}" ${rows:+--only "$rows"} --json "$rows_file" --resume
}

peer_rows() {  # peer_rows MODE TURN: the rows that bench_gpu has measured
  local rows_file=$out/$current/$1-$2.jsonl
  if ! has_torch; then skip "rows-$1-$2" "$python has no PyTorch"; return; fi
  if [ -z "$(verdict_of rows-weft-1)" ]; then left+=("rows-$1-$2"); return; fi
  unit "rows-$1-$2" 45 500 "$python" bench/peers/gpu_ops.py --names "$out/rows/weft-1.jsonl" \
    --mode "$1" --json "$rows_file" --resume
}

part_rows() { weft_rows 1; peer_rows eager 1; peer_rows cudnn 1; }
part_turns() { weft_rows 2; peer_rows eager 2; peer_rows cudnn 2; }
part_compiled() { peer_rows compiled 1; }

part_train() { unit train 60 400 env WEFT_BIN="$bin" "${training[@]}"; }

part_sass() {
  local code
  code=${arch:-$(card_code)}
  if [ -n "$emulated" ]; then skip sass "no machine code in the emulator"; return; fi
  if ! [ -f "$build/build.ninja" ]; then skip sass "needs a build by Ninja"; return; fi
  case $code in
    sm_80 | sm_90a | all) unit sass 60 300 "$python" scripts/check_sass.py --check "$build" ;;
    *) skip sass "docs/sass.md has no $code" ;;
  esac
  case $code in
    sm_90a | all) unit sass-hot-path 60 300 "$python" scripts/hot_path.py --check "$build" ;;
  esac
}

part_ranks() {
  local stem
  for stem in $rank_tests; do test_file "ranks-$stem" "$stem" "${kernel_tests[@]}"; done
  [ -n "$emulated" ] || unit ranks-train 90 480 env WEFT_BIN="$bin" "${training[@]}" --ranks
  grep -h 'MESSAGE: skipped: ' "$logs"/native-*.log "$logs"/ranks-*.log 2>/dev/null | sed 's/.*MESSAGE: /  /' || true
}

part_sanitizer() {
  local tool stem
  if ! command -v compute-sanitizer >/dev/null; then skip sanitizer "no compute-sanitizer"; return; fi
  for tool in memcheck racecheck synccheck; do
    for stem in $hot_tests; do
      unit "sanitizer-$tool-$stem" 60 500 compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "${kernel_tests[@]}" "--source-file=*cuda/test_$stem.cpp"
    done
  done
}

part_ctest() {
  unit ctest 120 530 ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error --timeout 300
}
