#!/usr/bin/env bash
# Checks for the Debian packages that Weft's build needs and installs missing ones.
# usage: scripts/setup.sh [build|all|api]     build: what the library and the programs need
#                                             all (default): the tests and checks too
#                                             api: what scripts/api_reference.sh needs
set -eu

# ocl-icd-opencl-dev: Weft does not use OpenCL, but the CMake package of libdnnl-dev requires it.
build="g++ cmake ninja-build libdnnl-dev ocl-icd-opencl-dev libcli11-dev
       libtomlplusplus-dev python3"
# libopenmpi-dev, openmpi-bin: ranks as processes. zlib1g-dev, libzstd-dev: compressed texts. All
# optional.
tests="git ccache doctest-dev libxtensor-dev clang-format pkg-config libopenmpi-dev openmpi-bin
       zlib1g-dev libzstd-dev"

case "${1:-all}" in
  build) wanted=$build ;;
  all) wanted="$build $tests" ;;
  api) wanted="doxygen python3" ;;
  *) echo "setup: unknown argument $1; use build, all or api" >&2; exit 2 ;;
esac

missing=()
if command -v dpkg-query >/dev/null; then
  for package in $wanted; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || echo none)
    [ "$state" = installed ] || missing+=("$package")
  done
else
  echo "setup: this is not Debian or Ubuntu; install the equivalents of:" $wanted >&2
  exit 0
fi
[ ${#missing[@]} -eq 0 ] && exit 0

command="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  echo "setup: missing packages; run:  sudo $command" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { ${as_root[@]+"${as_root[@]}"} apt-get update -q &&
       DEBIAN_FRONTEND=noninteractive ${as_root[@]+"${as_root[@]}"} $command; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "setup: apt failed (is there a network?); run:  $command" >&2
  exit 1
fi
