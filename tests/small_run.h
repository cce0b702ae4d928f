#pragma once
// Whole runs of train_gpt with a small model, for what a --dtype must keep to.
#include <cmath>
#include <string>
#include <vector>

#include "weft/examples/common/gpt_program.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/metrics.h"
#include "weft/tests/silence.h"
#include "weft/tests/temp_folder.h"

namespace weft::test {

struct RunKind {
  const char* name;
  bool experts;
  nn::Recompute recompute = nn::Recompute::none;
};
inline constexpr RunKind kRunKinds[] = {{"dense", false},
                                        {"dense, recomputed", false, nn::Recompute::full},
                                        {"experts and MTP", true, nn::Recompute::selective}};

struct RunLayout {
  std::int64_t ranks = 0, tp = 1, ep = 1;
  bool zero = false, fsdp = false;
};

struct SmallRun {
  TempFolder folder;
  examples::GptOptions options;

  explicit SmallRun(const RunKind& kind, const RunLayout& layout = {}) {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 23);
    io::write_file(folder / "text", text);
    options.data.files = {folder / "text"};
    options.out = folder / "out";
    nn::GptConfig& m = options.model;
    m.layers = m.heads = 2;
    m.dim = 32;
    m.seq = 16;
    m.vocab = 256;
    m.recompute = kind.recompute;
    if (kind.experts) {
      m.arch = nn::Arch::llama;
      m.ffn = 48;
      m.mtp.depths = 1;
      m.moe.experts = 4;
      m.moe.ffn = 16;
      m.moe.router.capacity_factor = 1;
    }
    options.batch = 4;
    options.micro_batch = 2;
    options.run.log_every = 1000;
    options.run.eval_every = 2;
    options.run.save_every = 2;
    options.data.val_fraction = 0.05;
    options.machine.threads = 1;
    options.optimizer.schedule = optim::Schedule::Kind::constant;
    options.optimizer.warmup = 0;
    options.parallel.ranks = layout.ranks;
    options.parallel.tp = layout.tp;
    options.parallel.sp = layout.tp > 1;
    options.parallel.ep = layout.ep;
    options.parallel.zero = layout.zero;
    options.parallel.fsdp = layout.fsdp;
  }
  int train(std::int64_t steps, bool resume = false) {
    const Silence silence;
    options.steps = steps;
    options.run.resume = resume;
    return examples::train_gpt(options);
  }
  std::vector<io::Json> rows() const { return io::read_metrics(options.out + "/metrics.jsonl"); }
  std::vector<double> values(const char* key) const {
    std::vector<double> out;
    for (const io::Json& row : rows())
      if (const io::Json* v = row.find(key)) out.push_back(v->as_double());
    return out;
  }
  /// Weights and optimizer states of the last checkpoint.
  std::string files() const {
    const io::Checkpoint last = *io::find_checkpoint(options.out);
    return io::read_file(last.shards("model").at(0)) + io::read_file(last.shards("optim").at(0));
  }
};

/// Whether two lists of losses agree to `bound`, relatively.
inline bool close_losses(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (!(std::fabs(a[i] - b[i]) <= bound * std::fabs(b[i]))) return false;
  return a.size() == b.size();
}

}  // namespace weft::test
