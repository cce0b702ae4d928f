#!/usr/bin/env bash
# Prints how long a user's file that includes weft/weft.h takes to compile: the median of 3.
# A report, not a test: the time depends on what else the machine does.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD" "$work/weft"
printf '#include "weft/weft.h"\nint main() { return weft::Tensor::ones({2}).ndim() - 1; }\n' >"$work/user.cpp"
for _ in 1 2 3; do
  start=$(date +%s%N)
  "${CXX:-g++}" -std=c++20 -O2 -I "$work" -c "$work/user.cpp" -o "$work/user.o"
  echo $((($(date +%s%N) - start) / 1000000))
done | sort -n | sed -n 2p | awk '{printf "weft/weft.h: %.2f s to compile\n", $1 / 1000}'
