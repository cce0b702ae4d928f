#!/bin/sh
# Runs a compiler and saves the register report of ptxas next to the object, as OBJECT.ptxas.
# usage: keep_report.sh COMPILER ARGUMENTS... -o OBJECT ...
object="" previous=""
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
status=0
"$@" 2>"$object.ptxas" || status=$?
# The remaining lines are warnings and errors.
grep -v '^ptxas info \| bytes stack frame, ' "$object.ptxas" >&2
# A report older than its object counts as that of another compilation.
touch "$object.ptxas"
exit "$status"
