// What of the model's state a checkpoint holds, and how a step starts from one.
#include <algorithm>
#include <set>
#include <string>

#include "weft/core/error.h"
#include "weft/distributed/model_slices.h"
#include "weft/train/train_step.h"

namespace weft::train {

// Some ranks may have no slice.
bool TrainStep::holds_slices() const { return optimizer_->ddp() && optimizer_->ddp()->fsdp(); }

// What of the state the optimizer does not hold in slices.
StateDict TrainStep::unsliced_state() const {
  StateDict state = task_.model.state_dict();
  if (holds_slices())
    for (const NamedTensor& p : optimizer_->ddp()->parameters()) state.erase(p.name);
  return state;
}

// Merged adapters are in no state_dict(): a checkpoint would lack what is trained.
void TrainStep::check_saves_trained() const {
  const StateDict state = task_.model.state_dict();
  for (const NamedTensor& p : nn::trainable_parameters(task_.model))
    check(state.contains(p.name),
          "train: {} is of a merged adapter and would be in no checkpoint; call unmerge_lora()",
          p.name);
}

distributed::SlicedTensors TrainStep::model_slices() {
  check_saves_trained();
  optimizer_->wait();
  distributed::SlicedTensors slices = optimizer_->parameter_slices();
  if (!holds_slices()) optimizer_->restore_values();
  StateDict state = unsliced_state();
  if (task_.saves_trained_only) keep_saved(state, true);
  slices.merge(distributed::model_slices(state, ranks_.mesh(), layout_));
  return slices;
}

// Of the model's state: what is in checkpoints, or what is not.
void TrainStep::keep_saved(StateDict& state, bool saved) const {
  std::set<std::string> trained;
  for (const NamedTensor& p : nn::trainable_parameters(task_.model)) trained.insert(p.name);
  std::erase_if(state, [&](const auto& entry) { return trained.contains(entry.first) != saved; });
}

// What of the model is in checkpoints, or all the rest.
void TrainStep::load_only(const distributed::ShardFiles& files, bool saved) {
  StateDict own = task_.model.state_dict();
  keep_saved(own, saved);
  load_some(distributed::read_model(own, layout_, files));
}

void TrainStep::load_some(StateDict given) {
  optimizer_->restore_values();
  std::erase_if(given, [](const auto& entry) { return nn::is_fp8_state(entry.first); });
  const nn::LoadReport report = task_.model.load_state_dict(given, false);
  check(report.unexpected.empty(), "load_state_dict: {} is not part of the model",
        report.unexpected.empty() ? std::string() : report.unexpected[0]);
}

void TrainStep::load_trained(const StateDict& whole) {
  check(!holds_slices(), "train: a start of trained parameters does not exist yet with --fsdp");
  StateDict own = task_.model.state_dict();
  keep_saved(own, true);
  load_some(distributed::cut_model(own, layout_, whole));
}

// Each rank reads its slices of what it holds in slices, and loads the rest.
void TrainStep::load_model(const distributed::ShardFiles& model, bool with_fp8_state) {
  const StateDict all = task_.model.state_dict(), own = unsliced_state();
  const bool sliced = holds_slices();
  if (!sliced) optimizer_->restore_values();
  StateDict given = distributed::read_model(own, layout_, model);
  if (!with_fp8_state) {
    std::erase_if(given, [](const auto& entry) { return nn::is_fp8_state(entry.first); });
    for (const auto& [name, tensor] : own)
      if (nn::is_fp8_state(name)) given[name] = tensor;
  }
  if (!sliced) {
    task_.model.load_state_dict(given);
    return;
  }
  std::erase_if(given, [&](const auto& entry) {
    return all.contains(entry.first) && !own.contains(entry.first);
  });
  const nn::LoadReport report = task_.model.load_state_dict(given, false);
  check(report.unexpected.empty(), "load_state_dict: {} is not part of the model",
        report.unexpected.empty() ? std::string() : report.unexpected[0]);
  for (const std::string& name : report.missing)
    check(!own.contains(name), "load_state_dict: {} is missing", name);
  optimizer_->load_parameters(model);
}

// A file of weights may come from a run without delayed scales, or from one with them.
void TrainStep::load_weights(const distributed::ShardFiles& model) {
  task_.saves_trained_only ? load_only(model, false) : load_model(model, false);
}

void TrainStep::load(const distributed::ShardFiles& model,
                     const distributed::ShardFiles& optimizer) {
  task_.saves_trained_only ? load_only(model, true) : load_model(model, true);
  optimizer_->load_state(optimizer);
}

}  // namespace weft::train
