// Launches that a card cannot run.
#include "weft/cuda/launch.h"

#include <string>

#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft::cuda {
namespace {

constexpr int kOldestCard = 80;  // bf16 and asynchronous copies

std::string card_text(int device) {
  const int capability = rt::compute_capability(device);
  return message("{} (cuda:{}, compute capability {}.{})", rt::device_name(device), device,
                 capability / 10, capability % 10);
}

[[noreturn]] void refuse(const char* format,
                         std::initializer_list<weft::detail::MessageArg> arguments) {
  weft::detail::raise(Fault::system, format, arguments);
}

}  // namespace

void refuse_grid(std::int64_t x, std::int64_t y, std::int64_t z) {
  refuse("launch: a grid must have at most {} x {} x {} blocks, got {} x {} x {}",
         {kMaxGridX, kMaxGridYZ, kMaxGridYZ, x, y, z});
}

void refuse_code(int device, const char* driver) {
  const int capability = rt::compute_capability(device);
  if (capability < kOldestCard)
    refuse("device: the compute capability must be at least {}.{}, got {}",
           {kOldestCard / 10, kOldestCard % 10, card_text(device)});
  refuse(
      "device: WEFT_CUDA_CODE must contain code for {}, got {}; configure with "
      "-DWEFT_CUDA_CODE=sm_{} and build again (the driver: {})",
      {card_text(device), rt::compiled_code(), capability, driver});
}

void refuse_shared_memory(int device, std::int64_t most, std::size_t asked) {
  refuse("launch: a block must ask for at most {} bytes of shared memory on {}, got {}",
         {most, card_text(device), asked});
}

}  // namespace weft::cuda
