#pragma once
#include <bit>
#include <cstdint>

namespace weft::detail {

// Size classes let a freed block serve the next request of about its size. Steps of 64 bytes up to
// 1 KiB, then 8 steps per doubling: at most 12.5 % unused.
constexpr int kLinearClasses = 16;
constexpr int kClasses = kLinearClasses + 8 * 38;

constexpr int class_of(std::int64_t bytes) {
  if (bytes <= 1024) return static_cast<int>((bytes + 63) / 64) - 1;
  const int k = std::bit_width(static_cast<std::uint64_t>(bytes - 1)) - 1;
  const std::int64_t step = std::int64_t{1} << (k - 3);
  const auto part = static_cast<int>((bytes - (std::int64_t{1} << k) + step - 1) >> (k - 3));
  return kLinearClasses + (k - 10) * 8 + part - 1;
}

constexpr std::int64_t class_bytes(int c) {
  if (c < kLinearClasses) return 64 * (c + 1);
  const int k = 10 + (c - kLinearClasses) / 8, part = (c - kLinearClasses) % 8 + 1;
  return (std::int64_t{1} << k) + part * (std::int64_t{1} << (k - 3));
}

static_assert(class_bytes(class_of(1)) == 64 && class_bytes(class_of(1024)) == 1024);
static_assert(class_bytes(class_of(1025)) == 1152 && class_bytes(class_of(3 << 20)) == 3 << 20);

}  // namespace weft::detail
