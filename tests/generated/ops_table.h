#pragma once
#include <span>
#include <string_view>

#include "weft/core/tensor.h"

namespace weft::generated {

/// One way to call one op.
struct OpLine {
  /// Its name in docs/ops.md.
  const char* op;
  /// "BMK K:p": one word per tensor, one letter per axis. "2F" is twice the size of F, "=3" is 3.
  /// The letters after the colon give the values, normal numbers by default:
  ///   p   between 0.5 and 2; integers of at least 1
  ///   b   bool
  ///   iX  indices (i64) below the size of X, or below X if it is a digit; jX the same in i32
  ///   w   normal, in f64 for f64 and else f32; u: the same between 0 and 1, n: between -1 and 0
  ///   h   normal, in f32 for every dtype of the other operands
  const char* operands;
  TensorList (*call)(const TensorList& in);
  /// n: also i32, i64 and u8; a: these and bool
  /// ~: another layout may change the last digits, because products become other oneDNN calls
  /// c: large terms cancel, so errors are relative to numbers of size 1 and above
  /// d: rounding would decide between equal values, so no operand repeats them
  /// s: gradients at infinity and NaN are unspecified: only results are compared there
  /// g: on a GPU a NaN may reach masked elements, which are multiplied by 0: no special values
  /// there l: the error grows with the number of steps: 8 times the bound
  const char* how = "";
  bool is(char flag) const { return std::string_view(how).find(flag) != std::string_view::npos; }
};

/// Every public op at least once.
std::span<const OpLine> ops_table();

}  // namespace weft::generated
