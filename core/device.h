#pragma once
#include <cstdint>
#include <iosfwd>

#include "weft/core/string_fwd.h"

namespace weft {

/// The device of a tensor. `meta` tensors have shapes and byte counts but no data, and count the
/// bytes of the CPU; `meta_cuda` tensors count those of a GPU.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, meta, meta_cuda };
  static constexpr int kKinds = 4;

  Kind kind = Kind::cpu;
  std::int16_t index = 0;

  bool is_cpu() const { return kind == Kind::cpu; }
  bool is_cuda() const { return kind == Kind::cuda; }
  /// True for cuda and meta_cuda, which allocate as a GPU does.
  bool is_gpu() const { return kind == Kind::cuda || kind == Kind::meta_cuda; }
  bool is_meta() const { return kind == Kind::meta || kind == Kind::meta_cuda; }
  bool operator==(const Device&) const = default;

  /// Parses "cpu", "cuda", "cuda:1", "meta" or "meta:cuda".
  /// Throws Error on any other text.
  static Device parse(const std::string& text);
};

inline constexpr Device kCpu{Device::Kind::cpu, 0};
inline constexpr Device kMeta{Device::Kind::meta, 0};

std::string to_string(Device d);
std::ostream& operator<<(std::ostream& out, Device d);

}  // namespace weft
