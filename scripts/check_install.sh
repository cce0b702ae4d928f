#!/usr/bin/env bash
# Uses Weft as another project would.
# usage: scripts/check_install.sh                installs build/release, moves the prefix elsewhere,
#                                                builds examples/consumer against it with CMake and
#                                                with pkg-config, and runs both, a trainer's tests,
#                                                and the programs of docs/author.md and others
#        scripts/check_install.sh --subproject   builds examples/consumer with add_subdirectory
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${1:-}" = --subproject ]; then
  # Checks that it builds and learns, not its speed, and that files include what they need, which
  # precompiled headers and large unity files would hide.
  cmake -S examples/consumer -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 -DWEFT_SOURCE="$root" -DWEFT_CUDA=OFF
  cmake --build "$work/build" -j "$(nproc)"
  "$work/build/consumer"
  "$work/build/tokens"
  exit 0
fi

cmake --install build/release --prefix "$work/first"
mv "$work/first" "$work/moved"

# Programs complete their flags, and have manual pages.
for program in "$work/moved"/bin/*; do
  name=$(basename "$program")
  for file in bash-completion/completions/"$name" zsh/site-functions/_"$name" \
    fish/vendor_completions.d/"$name".fish man/man1/"$name".1; do
    grep -q -- --help "$work/moved/share/$file" || grep -q '\\-\\-help' "$work/moved/share/$file" ||
      grep -q -- "-l help" "$work/moved/share/$file"
  done
done

# The installed headers compile with nothing but each other; xtensor.h needs another package.
(cd "$work/moved/include" && find weft -name '*.h' ! -name xtensor.h | sort |
  sed 's/.*/#include "&"/') >"$work/all.cpp"
"${CXX:-g++}" -std=c++20 -Wall -Wextra -fsyntax-only -I "$work/moved/include" "$work/all.cpp"

cp -r examples/consumer "$work/source"
cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/build"
"$work/build/consumer"
# The tokenizers work without the library of tensors.
"$work/build/tokens" tests/fixtures/tokenizers/qwen.json "It is a truth" | tail -n 1 | grep -qx "It is a truth"
if ldd "$work/build/tokens" | grep -q libweft.so; then
  echo "check_install: weft::tokenizer needs libweft.so" >&2
  exit 1
fi

export PKG_CONFIG_PATH="$work/moved/lib/pkgconfig"
# shellcheck disable=SC2046
"${CXX:-g++}" -std=c++20 -O1 "$work/source/main.cpp" -o "$work/by_pkg_config" \
  $(pkg-config --cflags --libs weft)
LD_LIBRARY_PATH="$work/moved/lib" "$work/by_pkg_config"

# A user's trainer: ranks, resume and Ctrl-C are those of the installed library.
mkdir "$work/bin"
# shellcheck disable=SC2046
"${CXX:-g++}" -std=c++20 -O1 examples/train_mlp.cpp -o "$work/bin/train_mlp" \
  $(pkg-config --cflags --libs weft)
command -v mpirun >/dev/null || export WEFT_WITHOUT_MPI=1
LD_LIBRARY_PATH="$work/moved/lib" WEFT_BIN="$work/bin" PYTHONDONTWRITEBYTECODE=1 \
  python3 tests/cli/test_mlp.py

# The programs of the pages, with what they print.
PYTHONDONTWRITEBYTECODE=1 scripts/run_pages.py "$work/moved"

# Installed files must not refer to the build location.
if grep -rlF -e "$root" -e "$work/first" "$work/moved" --include='*.cmake' --include='*.pc' --include='*.h'; then
  echo "check_install: an installed file names the build folder" >&2
  exit 1
fi
