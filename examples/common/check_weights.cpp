#include "weft/examples/common/check_weights.h"

#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/nn/fp8.h"

namespace weft::examples {

void check_weights(const nn::GptConfig& config, const distributed::ShardFiles& files) {
  config.validate();
  std::vector<std::string> names = files.names();
  std::erase_if(names, nn::is_fp8_state);
  double values = 0;
  for (const std::string& name : names) values += static_cast<double>(files.shape(name).numel());
  // First by count: a model of ten thousand layers takes time to make, even on the meta device.
  check(static_cast<double>(config.parameter_count()) <= values,
        "weights: the model has {} parameters, the files hold {} values", config.parameter_count(),
        values);
  StateDict headers;
  for (const std::string& name : names)
    headers[name] = Tensor::empty(files.shape(name), files.dtype(name), kMeta);
  const nn::DeviceScope on_meta(kMeta, DType::f32);
  nn::Gpt(config).load_state_dict(headers);
}

}  // namespace weft::examples
