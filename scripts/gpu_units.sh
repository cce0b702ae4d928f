# Sourced by gpu_check.sh: units of work that are done once, however many calls it takes.
#
# A part consists of units. $out/state has a line "PART UNIT VERDICT SECONDS" for each finished one,
# $out/logs/UNIT.log its output, and $out/PART/ the results that it left. A unit that was stopped
# has no line, and runs again in the next call.
# shellcheck disable=SC2034,SC2154 # variables of gpu_check.sh and parts.sh
archive=gpu_check.tar.gz
current=""  # the part whose units run
child=""    # the running program
earlier=0   # units that earlier calls have done
left=()     # units for the next call

# Prepares $out and the deadline of this call.
begin_call() {
  SECONDS=0
  # The last seconds are for the report and the archive.
  deadline=$((minutes * 60 - 10))
  mkdir -p "$out/logs"
  # A program that a killed call left behind still appends to its results, and holds the lock.
  exec 9>"$out/lock"
  flock -w 30 9 || fail "another call, or a program that it left behind, still works in $out"
  if ! [ -f "$out/state" ] && [ -f "$out/$archive" ]; then tar -C "$out" -xzf "$out/$archive"; fi
  local commit
  commit=$(git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
  if [ -f "$out/commit" ] && [ "$(cat "$out/commit")" != "$commit" ]; then
    fail "$out has results of commit $(cat "$out/commit"), and this is $commit; name another folder"
  fi
  local card=emulated
  [ -n "${emulated:-}" ] ||
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)
  if [ -s "$out/card" ] && [ -n "$card" ] && [ "$(cat "$out/card")" != "$card" ]; then
    fail "$out has results of card $(cat "$out/card"), and this is $card; name another folder"
  fi
  echo "$commit" >"$out/commit"
  [ -z "$card" ] || echo "$card" >"$out/card"
  touch "$out/state"
  forget
  logs=$out/logs
  trap pack EXIT
  trap 'stop_child; exit 143' INT TERM HUP
  nvidia-smi -q -d POWER,CLOCK,TEMPERATURE >>"$out/nvidia-smi.txt" 2>/dev/null || true
  [ -f "$out/machine.json" ] ||
    "$python" bench/peers/gpu_report.py --machine "$out/machine.json" ${emulated:+--emulated}
}

# Drops what the parts of --again have done.
forget() {
  local name
  for name in $again; do
    rm -rf "${out:?}/$name"  # first: else a call that is killed here would go on with old rows
    awk -v part="$name" '$1 != part' "$out/state" >"$out/state.new"
    mv "$out/state.new" "$out/state"
  done
}

stop_child() {
  [ -n "$child" ] || return 0
  kill "$child" 2>/dev/null || true
  wait "$child" 2>/dev/null || true
}

# One file to take away. Written anew after each unit and each minute: a machine that is lost takes
# at most the rows of a minute with it.
pack() {
  # Status 1: a log grew meanwhile.
  tar -C "$out" -czf "$out/$archive.new" --exclude="./$archive*" --exclude=./lock . 2>/dev/null ||
    [ $? -eq 1 ] || return 0
  mv "$out/$archive.new" "$out/$archive"
}

verdict_of() { awk -v name="$1" '$2 == name { print $3 }' "$out/state"; }

# limited SECONDS COMMAND...: runs a program at most so long, and not beyond the end of the call.
# Status 75: the call's time is up, or a program with a file of rows has added some; go on later.
limited() {
  local limit=$1 given start=$SECONDS status=0 size
  shift
  size=$(rows_size)
  given=$((deadline - SECONDS < limit ? deadline - SECONDS : limit))
  # A second may have passed since the caller looked, and for timeout 0 means no limit.
  [ "$given" -gt 0 ] || return 75
  # In the background, so that a signal to this script is handled at once.
  timeout -k 10 "$given" "$@" &
  child=$!
  local tick ended
  while true; do
    sleep "${pack_every:-60}" 9>&- &  # without the lock, which the next call needs at once
    tick=$!
    status=0 ended=""
    wait -n -p ended "$child" "$tick" || status=$?
    if [ "$ended" = "$child" ]; then
      # Not with TERM: until it runs sleep, the tick is a copy of this shell, with its traps.
      # Waited for, since else the shell reports that it was killed.
      { kill -KILL "$tick" && wait "$tick"; } 2>/dev/null || true
      break
    fi
    pack
    # A program that ends between two calls of wait -n is not told of by the second.
    if ! kill -0 "$child" 2>/dev/null; then
      status=0
      wait "$child" || status=$?
      break
    fi
  done
  child=""
  if [ "$status" -eq 0 ] || [ $((SECONDS - start)) -lt "$given" ]; then return "$status"; fi
  echo "stopped after $given s"
  if [ "$given" -lt "$limit" ] || [ "$(rows_size)" -gt "$size" ]; then return 75; fi
  return 124
}
rows_size() { stat -c %s "${rows_file:-/dev/null}" 2>/dev/null || echo 0; }

# unit NAME NEEDS LIMIT COMMAND...: runs the command unless an earlier call did, and starts it only
# if NEEDS seconds of the call are left. The caller may set rows_file, to which the command appends,
# and keep, a function that stores the result of NAME.
unit() {
  local name=$1 needs=$2 limit=$3 status=0 start=$SECONDS verdict
  shift 3
  verdict=$(verdict_of "$name")
  if [ -n "$verdict" ]; then
    earlier=$((earlier + 1))
  elif [ $((deadline - SECONDS)) -lt "$needs" ]; then
    verdict=left
    if [ "$deadline" -lt "$needs" ]; then
      echo "$name needs a call of --minutes $(((needs + 10 + 59) / 60))"
    fi
  else
    mkdir -p "$out/$current"
    part "$name" limited "$limit" "$@" || status=$?
    if [ "$status" -eq 0 ]; then ${keep:-true} "$name" || status=1; fi
    case $status in
      0) verdict=ok ;;
      75) verdict=left ;;
      77) verdict=skipped ;;
      *) verdict=FAILED ;;
    esac
    case $verdict in ok | FAILED) echo "$current $name $verdict $((SECONDS - start))" >>"$out/state" ;; esac
    pack
  fi
  case $verdict in
    ok) passed=$((passed + 1)) ;;
    FAILED) failed=$((failed + 1)) ;;
    left) left+=("$name") ;;
    skipped) skipped=$((skipped + 1)) && skipped_names+=("$name") ;;
  esac
}

# skip NAME REASON: a unit that cannot run here; the next call tries again.
skip() {
  echo "skipped $1: $2"
  skipped=$((skipped + 1))
  skipped_names+=("$1")
}

# Writes the report and says what is left.
end_call() {
  part report "$python" bench/peers/gpu_report.py "$out" --file "$out/report.md" || failed=$((failed + 1))
  [ "$earlier" -eq 0 ] || echo "done by earlier calls: $earlier"
  [ ${#left[@]} -eq 0 ] || echo "left for the next call: ${left[*]}"
  finish || exit 1
  [ ${#left[@]} -eq 0 ] || exit 75
}
