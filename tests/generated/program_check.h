#pragma once
#include <string>
#include <vector>

#include "weft/tests/generated/program.h"

namespace weft::generated {

/// How Weft runs a program.
struct How {
  DType dtype = DType::f64;
  Device device = kCpu;
  Rounding rounding = {};
  std::uint64_t count = 0;
};

/// The number of first items that can be differentiated twice.
std::size_t start_of_order_two(const Program& program);
/// Runs the program and compares it with `exact`, the interpreter's values: every value, the
/// gradient in a random direction, the same with a random part under recompute, and in f64 the
/// second order of the start of the program. Returns "" or a description of the error.
std::string check_program(const Program& program, const std::vector<Array>& exact, const How& how,
                          Rng rng);

}  // namespace weft::generated
