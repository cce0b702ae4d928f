#!/usr/bin/env bash
# Builds the API reference from the public headers with Doxygen, which is installed if missing:
# build/api/html/index.html. Fails on any Doxygen warning.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh api
rm -rf build/api
mkdir -p build/api/headers/weft
PYTHONDONTWRITEBYTECODE=1 scripts/api_headers.py build/api/headers/weft
doxygen docs/Doxyfile
echo "api reference: build/api/html/index.html, $(find build/api/html -name '*.html' | wc -l) pages"
