#!/usr/bin/env bash
# From a fresh clone to a trained GPT and a sample of its prose: builds the trainer, fetches a corpus
# (Jane Austen's six novels, from a Debian package), trains, samples.
# usage: scripts/quickstart.sh [--data FILE] [--out DIR] [--bpe]
#   --bpe: then trains a byte-pair tokenizer on the corpus and a second model on its tokens, and
#          compares the two in bits per byte
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."

# --- The training run: all settings that determine its result -------------------------------------
batch=8
seq=128
steps=3000  # 3000 x 8 x 128 = 3.07 M tokens
bpe_vocab=1024
model=(--preset tiny --arch llama --seq $seq)
schedule=(--batch $batch --steps $steps --lr 3e-3 --seed 1337 --eval-every 1000 --eval-tokens 0
  --log-every 100)
sample=(--tokens 400 --temperature 0.7 --topk 40 --seed 1337)
prompt="It was a truth"
# --------------------------------------------------------------------------------------------------

die() {  # die STATUS TEXT
  echo "quickstart: $2" >&2
  exit "$1"
}
data=""
out=runs/quickstart
bpe=no
while [ $# -gt 0 ]; do
  case "$1" in
    --bpe) bpe=yes && shift && continue ;;
    --data | --out) [ $# -ge 2 ] || die 2 "$1 needs a value" ;;
    *) die 2 "unknown option $1; known: --data FILE, --out DIR, --bpe" ;;
  esac
  path=$2
  [ "${path#/}" != "$path" ] || path=$from/$path
  if [ "$1" = --data ]; then data=$path; else out=$path; fi
  shift 2
done
[ -z "$data" ] || [[ -f "$data" && -r "$data" ]] || die 2 "--data: must be a file that can be read, got $data"
folders=("$out")
if [ "$bpe" = yes ]; then folders+=("$out-bpe"); fi
for folder in "${folders[@]}"; do
  [ ! -e "$folder" ] || die 2 "$folder exists already; remove it, or choose another folder with --out"
done
clock=$SECONDS
say() { printf '\n== %s (%d s so far)\n' "$1" $((SECONDS - clock)); }

say "Packages"
scripts/setup.sh build

say "Build"
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
fresh=()
# The run uses the CPU: without the CUDA kernels the build takes half the time.
[ -f build/release/CMakeCache.txt ] || fresh=(-DWEFT_TESTS=OFF -DWEFT_BENCH=OFF -DWEFT_CUDA=OFF)
cmake --preset release -DWEFT_EXAMPLES=ON ${fresh[@]+"${fresh[@]}"} >/dev/null
programs=(train_gpt generate)
if [ "$bpe" = yes ]; then programs+=(train_tokenizer); fi
cmake --build --preset release --target "${programs[@]}" -j "$(nproc)"

if [ -z "$data" ]; then
  say "Corpus"
  data=build/data/austen.txt
  if [ ! -s "$data" ]; then
    mkdir -p build/data
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"  # apt fetches as its own user
    command -v apt-get >/dev/null ||
      die 1 "no apt-get to fetch the corpus with; pass a text file of your own with --data FILE"
    fetch() { (cd "$work" && apt-get download -q r-cran-janeaustenr >apt.log 2>&1); }
    # If the package lists are missing or old, update them and try again.
    fetch || { [ "$(id -u)" -eq 0 ] && apt-get update -q >/dev/null 2>&1 && fetch; } || {
      tail -n 3 "$work/apt.log" >&2
      die 1 "cannot download the package r-cran-janeaustenr (is there a network? else pass a text file of your own with --data FILE)"
    }
    dpkg-deb -x "$work"/r-cran-janeaustenr_*.deb "$work/files"
    rdb=$(find "$work/files" -name Rdata.rdb)
    [ -n "$rdb" ] || die 1 "the package r-cran-janeaustenr holds no Rdata.rdb"
    python3 scripts/janeaustenr_text.py "$rdb" "$data"
  fi
fi

say "Training: $steps steps of $((batch * seq)) tokens, $((steps * batch * seq)) in all"
build/release/bin/train_gpt --data "$data" "${model[@]}" "${schedule[@]}" --out "$out"

say "A sample"
build/release/bin/generate --checkpoint "$out" --prompt "$prompt" "${sample[@]}"

if [ "$bpe" = yes ]; then
  say "Tokenizer: $bpe_vocab tokens learned from the corpus"
  mkdir -p "$out-bpe"
  build/release/bin/train_tokenizer --data "$data" --vocab $bpe_vocab --out "$out-bpe/tokenizer.json"

  say "Training on its tokens, for as many steps"
  on_tokens=(--data "$data" --tokenizer "$out-bpe/tokenizer.json" "${model[@]}" "${schedule[@]}")
  build/release/bin/train_gpt "${on_tokens[@]}" --out "$out-bpe/run"

  say "A sample"
  build/release/bin/generate --checkpoint "$out-bpe/run" --prompt "$prompt" "${sample[@]}"

  say "Bits per byte of the held-out text"
  # val_loss is nats per token; --dry-run prints the mean bytes of a held-out token.
  per_token=$(build/release/bin/train_gpt "${on_tokens[@]}" --out "$out-bpe/none" --dry-run |
    sed -n 's/^bytes per token *//p')
  bits() {  # bits FOLDER BYTES_PER_TOKEN
    grep -o '"val_loss":[0-9.]*' "$1/metrics.jsonl" | tail -n 1 |
      awk -F: -v bytes="$2" '{ printf "%.4f", $2 / log(2) / bytes }'
  }
  echo "bytes            $(bits "$out" 1)"
  echo "byte pairs       $(bits "$out-bpe/run" "$per_token")  ($per_token bytes per token)"
fi

say "Done"
echo "the tokens of the first model are bytes, so its losses above are nats per byte"
echo "checkpoint  $(ls -d "$out"/checkpoints/step_* | tail -n 1)"
echo "metrics     $out/metrics.jsonl"
echo "plot        $out/loss.svg"
echo "more text   build/release/bin/generate --checkpoint $out --prompt \"...\""
