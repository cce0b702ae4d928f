#!/usr/bin/env bash
# Fails if clang-format would change a source file. To fix: scripts/check_format.sh --fix
set -eu
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files -- '*.h' '*.cpp' '*.inc' '*.cu' '*.cuh')
mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format "${mode[@]}"
echo "format: ${#files[@]} files"
