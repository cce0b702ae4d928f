#pragma once
#include "weft/core/dtype.h"

namespace weft {

// A number (a double) combined with an i32, i64 or u8 tensor must be representable in that dtype: a
// fraction, an infinity, NaN or 1e300 would silently become another number. Other dtypes take any
// number.

/// Checks a number that becomes an element.
/// Throws Error "op: the number must be whole for a tensor of i32, got 0.5", or when it is out of
/// range.
void check_element(const char* op, DType dtype, double value);

/// Checks a number that is added, subtracted or multiplied. The caller may mean its negative, so u8
/// takes -255.
/// Throws Error like check_element().
void check_operand(const char* op, DType dtype, double value);

/// Checks bounds: results are at least `low` and at most `high`. A bound beyond the range (or
/// infinite) that every element meets is accepted; one that no element can meet is refused.
/// Throws Error like check_element().
void check_bounds(const char* op, DType dtype, double low, double high);

/// The largest number of a floating-point dtype below the bound; NaN or an infinity if it has none.
double largest_below(DType dtype, double bound);

}  // namespace weft
