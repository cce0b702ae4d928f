#include "weft/core/numbers.h"

#include <cmath>
#include <limits>

#include "weft/core/error.h"

namespace weft {
namespace {

struct Range {
  std::int64_t low, high;
};

Range range_of(DType dtype) {
  const auto of = []<class T>(T) -> Range {
    return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  };
  if (dtype == DType::u8) return of(std::uint8_t{});
  return dtype == DType::i32 ? of(std::int32_t{}) : of(std::int64_t{});
}

// 2^63 - 1 is not a double; the nearest double, 2^63, is above it.
bool above(double v, std::int64_t high) {
  return high == INT64_MAX ? v >= 0x1p63 : v > static_cast<double>(high);
}
bool below(double v, std::int64_t low) { return v < static_cast<double>(low); }

void check_whole(const char* op, DType dtype, double v) {
  check(v == std::trunc(v), "{}: the number must be whole for a tensor of {}, got {}", op, dtype,
        v);
}

void check_inside(const char* op, DType dtype, double v, const Range& r) {
  check_whole(op, dtype, v);
  check(!below(v, r.low) && !above(v, r.high),
        "{}: the number must be in [{}, {}] for a tensor of {}, got {}", op, r.low, r.high, dtype,
        v);
}

}  // namespace

void check_element(const char* op, DType dtype, double value) {
  if (is_integral(dtype)) check_inside(op, dtype, value, range_of(dtype));
}

void check_operand(const char* op, DType dtype, double value) {
  if (!is_integral(dtype)) return;
  const Range r = range_of(dtype);
  check_inside(op, dtype, value, {r.low == 0 ? -r.high : r.low, r.high});
}

void check_bounds(const char* op, DType dtype, double low, double high) {
  if (!is_integral(dtype)) return;
  const Range r = range_of(dtype);
  check_whole(op, dtype, low);
  check_whole(op, dtype, high);
  check(!above(low, r.high) && !below(high, r.low),
        "{}: a tensor of {} must have a number from {} to {}, its range is [{}, {}]", op, dtype,
        low, high, r.low, r.high);
}

double largest_below(DType dtype, double bound) {
  return dispatch_all(dtype, [&]<class T>() -> double {
    if constexpr (std::is_integral_v<T>) {
      return bound;
    } else if constexpr (std::is_arithmetic_v<T>) {
      const T v = static_cast<T>(bound);
      const double value = static_cast<double>(v);
      return value < bound ? value : std::nextafter(v, -std::numeric_limits<T>::infinity());
    } else {
      T v(static_cast<float>(bound));
      const auto value = static_cast<double>(static_cast<float>(v));
      if (value < bound) return value;
      // Read as an integer, the bits grow with the magnitude; those of negative numbers begin at
      // -0.
      const int minus_zero = 1 << (8 * sizeof(T) - 1);
      const int bits = value > 0 ? v.bits - 1 : (value < 0 ? v.bits : minus_zero) + 1;
      v.bits = static_cast<decltype(v.bits)>(bits);
      return static_cast<double>(static_cast<float>(v));
    }
  });
}

}  // namespace weft
