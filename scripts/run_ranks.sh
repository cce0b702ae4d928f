#!/usr/bin/env bash
# Runs a program as several ranks on this machine, with the options that mpirun needs as root, in a
# container and on fewer processors than ranks. Returns the program's status.
# usage: scripts/run_ranks.sh 4 build/release/bin/train_gpt --dp 4 ...
set -eu
if ! [[ "${1:-}" =~ ^[1-9][0-9]*$ ]] || [ $# -lt 2 ]; then
  echo "run_ranks: usage: run_ranks.sh RANKS PROGRAM [ARGUMENTS]" >&2
  exit 2
fi
ranks=$1
shift
if ! mpirun=$(command -v mpirun); then
  echo "run_ranks: there is no mpirun; install openmpi-bin (Debian), or run with --ranks $ranks instead" >&2
  exit 2
fi
if ! command -v "$1" >/dev/null; then
  echo "run_ranks: there is no program $1" >&2
  exit 2
fi

processors=$(nproc)
threads=$((processors / ranks))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"
# Open MPI 4.1's mpirun sometimes hangs in its own end after a rank has called MPI_Abort. All of its
# children are zombies then; after five seconds of that it is killed.
end_hanging() {
  local child state alive idle=0
  while sleep 1 && kill -0 "$1"; do
    alive='' state=''
    for child in $(cat "/proc/$1/task/$1/children"); do
      state=$(sed 's/.*) //; s/ .*//' "/proc/$child/stat") || continue
      [ "$state" = Z ] || alive=1
    done
    idle=$((idle + 1))
    if [ -n "$alive" ] || [ -z "$state" ]; then idle=0; fi
    if [ "$idle" -ge 5 ]; then kill -KILL "$1"; fi
  done
}

# On Ctrl-C or job termination, mpirun would kill the ranks within a second, which is too short for
# a step and a save. So mpirun runs in its own session and forwards SIGUSR1 to the ranks, which then
# stop as after Ctrl-C. A second signal kills them.
run() {
  setsid "$mpirun" "$@" <&0 &
  local child=$! signal=USR1 status
  end_hanging "$child" >/dev/null 2>&1 &
  trap 'kill -"$signal" "$child" 2>/dev/null; signal=TERM' INT TERM
  # A closing terminal sends this more than once.
  trap 'kill -USR1 "$child" 2>/dev/null' HUP
  while true; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || exit "$status"
  done
}

case $("$mpirun" --version 2>/dev/null) in
  *"Open MPI"* | *OpenRTE*)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    # --bind-to none: otherwise all threads of a rank would share one processor.
    run --oversubscribe --bind-to none -n "$ranks" "$@"
    ;;
  *)
    run -n "$ranks" "$@"
    ;;
esac
