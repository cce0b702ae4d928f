#!/usr/bin/env bash
# Prints the cost of compiling a user's file that includes weft/weft.h: the median of 3, in seconds
# of processor time. A report rather than a test, since it depends on the machine.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD" "$work/weft"
printf '#include "weft/weft.h"\nint main() { return weft::Tensor::ones({2}).ndim() - 1; }\n' >"$work/user.cpp"
TIMEFORMAT='%U %S'
for _ in 1 2 3; do
  { time "${CXX:-g++}" -std=c++20 -O2 -I "$work" -c "$work/user.cpp" -o "$work/user.o"; } 2>&1
done | awk '{ print $1 + $2 }' | sort -n | sed -n 2p | sed 's|.*|weft/weft.h: & s of processor time to compile|'
