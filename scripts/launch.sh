#!/usr/bin/env bash
# Runs a program as several ranks on this machine without MPI: finds weft_launch, which does it.
# usage: scripts/launch.sh -n 8 [--log-dir D] [--restarts K] [--elastic] build/release/bin/train_gpt ...
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for launcher in "${WEFT_LAUNCH:-}" "$root"/build/*/bin/weft_launch "$(command -v weft_launch || true)"; do
  if [ -x "$launcher" ]; then exec "$launcher" "$@"; fi
done
echo "launch: there is no weft_launch; build it (cmake --build --preset release --target weft_launch) or set WEFT_LAUNCH" >&2
exit 2
