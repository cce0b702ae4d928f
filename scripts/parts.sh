# Sourced by test.sh and .ci/run: runs named parts, times them, counts what passed.
passed=0
failed=0
logs=build/logs
mkdir -p "$logs"
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi

# part NAME COMMAND...: runs the command with its output in build/logs/NAME.log, prints one line
# with the time, and the end of the log when it failed. Returns the command's status.
part() {
  local name=$1 start status=0
  shift
  start=$(date +%s%N)
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  local verdict=ok
  [ "$status" -eq 0 ] || verdict=FAILED
  awk -v v="$verdict" -v n="$name" -v t=$((($(date +%s%N) - start) / 1000000)) \
    'BEGIN { printf "%-6s %-22s %7.1f s\n", v, n, t / 1000 }'
  [ "$status" -eq 0 ] || { echo "--- end of $logs/$name.log"; tail -n 30 "$logs/$name.log"; }
  return "$status"
}

# check NAME COMMAND...: a part that counts as one test.
check() {
  if part "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# failures LOG: of a log of ctest, what the tests that failed have printed, the last lines of each.
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
  local summary bad total
  part "$@" || true
  summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$logs/$1.log" || true)
  if [ -z "$summary" ]; then
    echo "$1: ctest ran no test"
    failed=$((failed + 1))
    return
  fi
  bad=$(sed -E 's/.*passed, ([0-9]+) .*/\1/' <<<"$summary")
  total=$(sed -E 's/.* ([0-9]+)$/\1/' <<<"$summary")
  passed=$((passed + total - bad))
  failed=$((failed + bad))
  failures "$logs/$1.log"
}

# The last line of the script and its exit status.
finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

# give_up NAME: nothing after this part can run.
give_up() {
  echo "stopped: $1 failed"
  failed=$((failed + 1))
  finish
  exit 1
}
