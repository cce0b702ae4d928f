#include "weft/examples/common/adapter_start.h"

#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/peft_folder.h"
#include "weft/examples/common/adapter.h"
#include "weft/nn/gpt.h"

namespace weft::examples {
namespace {

nn::LoraWeights read(const GptOptions& o) {
  if (distributed::is_peft_folder(o.adapter)) return read_adapter(o.adapter, o.gpt());
  AdapterRun run = open_adapter_run(o.adapter);
  check(!run.base_crc32c || *run.base_crc32c == o.base_crc32c,
        "--adapter: '{}' must be trained on the weights in '{}', got one of those in '{}'",
        o.adapter, o.run.weights, run.base);
  return std::move(run.weights);
}

// Dropout is of training alone and may change.
void check_settings(const GptOptions& o, const nn::LoraOptions& adapter) {
  const auto check_same = [&](const char* flag, const auto& has, const auto& run) {
    check(has == run, "--{}: must be {} as in the adapter '{}', got {}", flag, has, o.adapter, run);
  };
  check_same("lora-rank", adapter.rank, o.lora.rank);
  check_same("lora-alpha", adapter.alpha_or_default(), o.lora.alpha_or_default());
  const auto word = [](bool on) { return on ? "on" : "off"; };
  check(adapter.rslora == o.lora.rslora, "--rslora: must be {} as in the adapter '{}', got {}",
        word(adapter.rslora), o.adapter, word(o.lora.rslora));
}

}  // namespace

StateDict start_of_adapter(const GptOptions& o) {
  if (o.adapter.empty()) return {};
  nn::LoraWeights adapter = read(o);
  check_settings(o, adapter.options);
  const nn::DeviceScope on_meta(kMeta);
  nn::Gpt model(o.gpt());
  nn::add_lora(model, o.lora);
  StateDict start;
  for (const NamedTensor& p : nn::lora_parameters(model)) {
    const auto found = adapter.tensors.find(p.name);
    check(found != adapter.tensors.end(),
          "--lora-targets: must be the layers of the adapter '{}', which has no {}", o.adapter,
          p.name);
    const Tensor& t = found->second;
    check(t.shape() == p.tensor.shape() && is_compute(t.dtype()),
          "--adapter: {} of '{}' must be of f32, f64, bf16 or f16 with shape {}, got {} {}", p.name,
          o.adapter, p.tensor.shape(), t.dtype(), t.shape());
    start[p.name] = t;
    adapter.tensors.erase(found);
  }
  check(adapter.tensors.empty(),
        "--lora-targets: must be the layers of the adapter '{}', which has {} too", o.adapter,
        adapter.tensors.empty() ? std::string() : adapter.tensors.begin()->first);
  return start;
}

}  // namespace weft::examples
