#pragma once
#include "weft/examples/common/gpt_options.h"
#include "weft/io/json.h"
#include "weft/nn/gpt.h"
#include "weft/train/task.h"

namespace weft::examples {

/// A GPT as a trainer takes it: the model on the meta device, its losses, how it is cut over ranks,
/// and what a checkpoint says of it.
class GptTask {
 public:
  explicit GptTask(const GptOptions& options);
  GptTask(const GptTask&) = delete;

  nn::Gpt model;
  /// Refers to this object.
  train::Task task();

 private:
  GptOptions options_;
};

/// train::predict_peak_bytes() of that task.
std::int64_t predict_peak_bytes(const GptOptions& options, int ranks, int rank);

/// The model's configuration as it stands in a checkpoint, and back.
/// Throws Error (Fault::system) on what is no configuration, or one out of all bounds.
io::Json config_to_json(const nn::GptConfig& config);
nn::GptConfig config_from_json(const io::Json& json);

}  // namespace weft::examples
