# Sourced by test.sh and .ci/run: runs named parts, times them and counts the passed ones.
passed=0
failed=0
skipped=0
skipped_names=()
logs=build/logs
mkdir -p "$logs"

# Call after setup, which installs ccache.
use_ccache() {
  command -v ccache >/dev/null || return 0
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # precompiled headers
  # Without the depend mode a header whose comments changed finds its old precompiled header, whose
  # checksums no longer match the files: GCC reads them twice. The namespace leaves such entries.
  export CCACHE_DEPEND=1 CCACHE_NAMESPACE=weft-depend
  # Each build folder finds the objects that another one compiled with the same flags.
  export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR
  CCACHE_BASEDIR=$(pwd -P)  # as CMake writes it
}

# Processor time of this script's finished children in milliseconds.
processor_ms() { awk -v hz="$(getconf CLK_TCK)" '{ print int(($16 + $17) * 1000 / hz) }' /proc/$$/stat; }

# part NAME COMMAND...: runs the command with its output in build/logs/NAME.log and prints one line
# with its wall and processor time, and the end of the log on failure. Returns the command's status.
part() {
  local name=$1 start before status=0
  shift
  start=$(date +%s%N) before=$(processor_ms)
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  local verdict=FAILED
  case $status in
    0) verdict=ok ;;
    75) verdict=stopped ;;
    77) verdict=skipped ;;
  esac
  awk -v v="$verdict" -v n="$name" -v t=$((($(date +%s%N) - start) / 1000000)) \
    -v p=$(($(processor_ms) - before)) \
    'BEGIN { printf "%-7s %-22s %7.1f s, %7.1f s of processor time\n", v, n, t / 1000, p / 1000 }'
  [ "$verdict" != FAILED ] || { echo "--- end of $logs/$name.log"; tail -n 30 "$logs/$name.log"; }
  return "$status"
}

# check NAME COMMAND...: a part that counts as one test; status 77 means that it could not run here.
check() {
  local status=0
  part "$@" || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) && skipped_names+=("$1") ;;
    *) failed=$((failed + 1)) ;;
  esac
}

# failures LOG: prints the last output lines of each failed test in a ctest log.
failures() {
  awk '
    function flush() { for (i = n > 60 ? n - 60 : 0; i < n; i++) print line[i % 60]; n = 0 }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+:/ { flush(); shown = !/(Passed|Skipped) +[0-9.]+ sec/ }
    /^ *Start +[0-9]+:/ { flush(); shown = 0 }
    /^[0-9]+% tests passed/ { exit }
    shown { line[n++ % 60] = $0 }
    END { flush() }' "$1"
}

# tests NAME COMMAND...: a part that runs ctest and counts its tests.
tests() {
  local summary bad total left_out
  part "$@" || true
  summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$logs/$1.log" || true)
  if [ -z "$summary" ]; then
    echo "$1: ctest ran no test"
    failed=$((failed + 1))
    return
  fi
  bad=$(sed -E 's/.*passed, ([0-9]+) .*/\1/' <<<"$summary")
  total=$(sed -E 's/.* ([0-9]+)$/\1/' <<<"$summary")
  mapfile -t left_out < <(sed -nE 's/^\t *[0-9]+ - (.*) \(Skipped\)$/\1/p' "$logs/$1.log")
  skipped=$((skipped + ${#left_out[@]}))
  skipped_names+=("${left_out[@]}")
  passed=$((passed + total - bad - ${#left_out[@]}))
  failed=$((failed + bad))
  failures "$logs/$1.log"
}

# slowest PRESET: the ten objects with the longest compile time and the ten slowest tests, in wall
# time.
slowest() {
  echo "slowest of $1, seconds:"
  [ ! -f "build/$1/.ninja_log" ] || awk '/\.o\t/ { s[$4] = ($2 - $1) / 1000 }
    END { for (f in s) { n = f; sub(/.*\.dir\//, "", n); printf "%8.1f  %s\n", s[f], n } }' \
    "build/$1/.ninja_log" | sort -rn | head -n 10
  [ ! -f "$logs/ctest-$1.log" ] || sed -nE \
    's|^ *[0-9]+/[0-9]+ Test +#[0-9]+: ([^ ]+) \.*.* ([0-9.]+) sec.*|\2 \1|p' "$logs/ctest-$1.log" |
    sort -rn | head -n 10 | awk '{ printf "%8.1f  test %s\n", $1, $2 }'
}

# Prints the last lines of the script and sets its exit status. Lists the tests that could not run
# here, for lack of a GPU or an instruction set.
finish() {
  [ "$skipped" -eq 0 ] || echo "skipped: ${skipped_names[*]}"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}

# give_up NAME: aborts, since nothing after this part can run.
give_up() {
  echo "stopped: $1 failed"
  failed=$((failed + 1))
  finish
  exit 1
}
