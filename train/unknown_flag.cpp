#include "weft/train/unknown_flag.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::train {
namespace {

// A flag of nanoGPT, llm.c or PyTorch trainers. Without a note our flag means exactly the same and
// replaces it; a note says what differs. `ours` is null if there is no counterpart.
struct OtherName {
  const char *typed, *ours, *note = nullptr;
};
constexpr OtherName kOtherNames[] = {
    {"--learning-rate", "--lr"},
    {"--max-lr", "--lr"},
    {"--max-iters", "--steps"},
    {"--max-steps", "--steps"},
    {"--num-steps", "--steps"},
    {"--num-iterations", "--steps"},
    {"--train-iters", "--steps"},
    {"--n-layer", "--layers"},
    {"--n-layers", "--layers"},
    {"--num-layers", "--layers"},
    {"--n-head", "--heads"},
    {"--n-heads", "--heads"},
    {"--num-heads", "--heads"},
    {"--num-attention-heads", "--heads"},
    {"--n-kv-heads", "--kv-heads"},
    {"--num-key-value-heads", "--kv-heads"},
    {"--n-embd", "--dim"},
    {"--hidden-size", "--dim"},
    {"--d-model", "--dim"},
    {"--ffn-hidden-size", "--ffn"},
    {"--intermediate-size", "--ffn"},
    {"--block-size", "--seq"},
    {"--sequence-length", "--seq"},
    {"--seq-length", "--seq"},
    {"--seq-len", "--seq"},
    {"--context-length", "--seq"},
    {"--vocab-size", "--vocab"},
    {"--out-dir", "--out"},
    {"--output-dir", "--out"},
    {"--eval-interval", "--eval-every"},
    {"--val-loss-every", "--eval-every"},
    {"--log-interval", "--log-every"},
    {"--logging-steps", "--log-every"},
    {"--sample-interval", "--sample-every"},
    {"--save-interval", "--save-every"},
    {"--save-steps", "--save-every"},
    {"--checkpoint-every", "--save-every"},
    {"--save-total-limit", "--keep"},
    {"--grad-clip", "--clip"},
    {"--max-grad-norm", "--clip"},
    {"--warmup-iters", "--warmup"},
    {"--warmup-steps", "--warmup"},
    {"--adam-beta1", "--beta1"},
    {"--adam-beta2", "--beta2"},
    {"--adam-eps", "--eps"},
    {"--input-bin", "--data"},
    {"--train-data", "--data"},
    {"--data-path", "--data"},
    {"--input-val-bin", "--val-data"},
    {"--lr-scheduler", "--schedule"},
    {"--lr-scheduler-type", "--schedule"},
    {"--tensor-parallel-size", "--tp"},
    {"--expert-parallel-size", "--ep"},
    {"--num-experts", "--experts"},
    {"--batch-size", "--batch", "it counts the rows of a step over all ranks and micro-batches"},
    {"--total-batch-size", "--batch", "it counts rows, not tokens"},
    {"--global-batch-size", "--batch", "it counts the rows of a step"},
    {"--per-device-train-batch-size", "--micro-batch", "it counts the rows of one forward pass"},
    {"--micro-batch-size", "--micro-batch", "it counts the rows of one forward pass"},
    {"--gradient-accumulation-steps", "--micro-batch",
     "a step accumulates as often as it takes to come from there to --batch"},
    {"--grad-accum", "--micro-batch",
     "a step accumulates as often as it takes to come from there to --batch"},
    {"--eval-iters", "--eval-tokens", "it counts tokens"},
    {"--val-max-steps", "--eval-tokens", "it counts tokens"},
    {"--epochs", "--steps", "it counts optimizer steps; the plan says how many epochs they are"},
    {"--num-epochs", "--steps",
     "it counts optimizer steps; the plan says how many epochs they are"},
    {"--num-train-epochs", "--steps",
     "it counts optimizer steps; the plan says how many epochs they are"},
    {"--init-from", "--weights", "it names a .safetensors file; --resume goes on with a run"},
    {"--resume-from-checkpoint", "--resume", "it takes no value and looks in --out"},
    {"--load", "--weights", "it names a .safetensors file; --resume goes on with a run"},
    {"--gpus", "--ranks", "--device cuda runs on the GPU"},
    {"--nproc-per-node", "--ranks", "it starts ranks as threads"},
    {"--world-size", "--ranks", "it starts ranks as threads"},
    {"--bf16", "--dtype", "--dtype bf16"},
    {"--fp16", "--dtype", "--dtype f16"},
    {"--fp8", "--dtype", "--dtype fp8"},
    {"--amp", "--dtype", "--dtype bf16"},
    {"--precision", "--dtype", "f32, bf16, f16, f64 or fp8"},
    {"--cuda", "--device", "--device cuda"},
    {"--activation-checkpointing", "--recompute", "--recompute full"},
    {"--gradient-checkpointing", "--recompute", "--recompute full"},
    {"--zero-stage", "--zero", "a switch: stage 1"},
    {"--decay-lr", "--schedule", "--schedule constant switches it off"},
    {"--model", "--preset", "a model of known sizes"},
    {"--compile", nullptr, "nothing is compiled at run time; --graph captures a step on a GPU"},
    {"--wandb", nullptr, "metrics.jsonl in --out has all numbers"},
    {"--wandb-log", nullptr, "metrics.jsonl in --out has all numbers"},
    {"--wandb-project", nullptr, "metrics.jsonl in --out has all numbers"},
    {"--tensorboard", nullptr, "metrics.jsonl in --out has all numbers, loss.svg the curve"},
    {"--num-workers", nullptr, "batches are made by the trainer itself; remove the flag"},
};

bool contains(const std::vector<std::string>& known, const std::string& name) {
  return std::find(known.begin(), known.end(), name) != known.end();
}

// The name without its value, with '-' in place of '_'.
std::string flag_name(const std::string& given) {
  std::string name = given.substr(0, given.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const OtherName* find_other(const std::string& name) {
  for (const OtherName& o : kOtherNames)
    if (name == o.typed) return &o;
  return nullptr;
}

/// Levenshtein distance, one row of the table at a time.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1])});
      corner = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string our_name(const std::string& given, const std::vector<std::string>& known) {
  if (given.rfind("--", 0) != 0 || contains(known, given.substr(0, given.find('=')))) return given;
  const std::string name = flag_name(given),
                    value = given.substr(std::min(given.find('='), given.size()));
  if (contains(known, name)) return name + value;
  const OtherName* const other = find_other(name);
  return other && !other->note && contains(known, other->ours) ? other->ours + value : given;
}

void throw_unknown_flag(const std::string& given, const std::vector<std::string>& known,
                        const char* list) {
  // No known flag is that long, and the time below grows with the length.
  const std::string name = given.substr(0, std::min<std::size_t>(given.find('='), 64));
  const OtherName* const other = find_other(flag_name(name));
  check(!other || other->ours, "unknown flag '{}'; {}", name, other ? other->note : "");
  if (other && contains(known, other->ours))
    throw Error(message("unknown flag '{}'; the nearest in meaning is {}{} ({} lists all)", name,
                        other->ours, other->note ? message(": {}", other->note) : std::string(),
                        list));
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  throw Error(message("unknown flag '{}'; the nearest is {} ({} lists all)", name, *nearest, list));
}

}  // namespace weft::train
