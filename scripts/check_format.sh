#!/usr/bin/env bash
# Fails if clang-format would change a source file, or if a file is too large to be source: what a
# run wrote does not belong in the repository. To format: scripts/check_format.sh --fix
set -eu
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files -- '*.h' '*.cpp' '*.inc' '*.cu' '*.cuh')
mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format "${mode[@]}"
large=$(git ls-files -z | xargs -0 sh -c 'find "$@" -maxdepth 0 -size +512k' find)
if [ -n "$large" ]; then
  echo "check_format.sh: a tracked file has at most 512 KiB, got larger ones: $large" >&2
  exit 1
fi
echo "format: ${#files[@]} files"
