#include "weft/core/device.h"

#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft {

std::atomic<detail::SkippedKernel*> detail::on_skipped_kernel{nullptr};

std::string to_string(Device d) {
  switch (d.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return message("cuda:{}", d.index);
    case Device::Kind::meta:
      return "meta";
    case Device::Kind::meta_cuda:
      return "meta:cuda";
  }
  return "?";
}

Device Device::parse(const std::string& text) {
  if (text == "cpu") return kCpu;
  if (text == "meta") return kMeta;
  if (text == "meta:cuda") return {Kind::meta_cuda, 0};
  if (text == "cuda") return {Kind::cuda, 0};
  const bool numbered = text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() <= 8 &&
                        text.find_first_not_of("0123456789", 5) == std::string::npos;
  check(numbered, "device: must be cpu, cuda, cuda:N, meta or meta:cuda, got '{}'", text);
  return {Kind::cuda, static_cast<std::int16_t>(std::stoi(text.substr(5)))};
}

}  // namespace weft
