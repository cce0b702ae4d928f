#!/bin/sh
# Runs a compiler and keeps what ptxas tells about registers beside the object, as OBJECT.ptxas.
# usage: keep_report.sh COMPILER ARGUMENTS... -o OBJECT ...
object="" previous=""
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
status=0
"$@" 2>"$object.ptxas" || status=$?
# What remains is warnings and errors.
grep -v '^ptxas info \| bytes stack frame, ' "$object.ptxas" >&2
# Older than its object a report counts as another one's.
touch "$object.ptxas"
exit "$status"
