#pragma once
#include "weft/examples/common/gpt_options.h"
#include "weft/io/json.h"
#include "weft/nn/gpt.h"
#include "weft/train/task.h"

namespace weft::examples {

/// A GPT as a task for the trainer: the model on the meta device, its losses, its sharding, and its
/// description in a checkpoint.
class GptTask {
 public:
  explicit GptTask(const GptOptions& options);
  GptTask(const GptTask&) = delete;

  nn::Gpt model;
  /// The result refers to this object.
  train::Task task();

 private:
  GptOptions options_;
};

/// Parameters of the adapters that --lora-rank adds; 0 without it.
std::int64_t adapter_parameters(const GptOptions& options);

/// train::predict_peak_bytes() of that task.
std::int64_t predict_peak_bytes(const GptOptions& options, int ranks, int rank);
/// train::predict_copied_by_save() of that task.
std::int64_t predict_copied_by_save(const GptOptions& options, int ranks, int rank);

/// Converts the model's configuration to and from its form in a checkpoint.
/// Throws Error (Fault::system) on an invalid configuration or sizes out of bounds.
io::Json config_to_json(const nn::GptConfig& config);
nn::GptConfig config_from_json(const io::Json& json);

}  // namespace weft::examples
