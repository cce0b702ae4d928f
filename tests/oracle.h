#pragma once
#include <vector>

#include "weft/core/tensor.h"

/// Array arithmetic in xtensor, an independent implementation. Everything is f64 and every result
/// is a new contiguous tensor. Only oracle.cpp includes xtensor, because it compiles slowly.
namespace weft::oracle {

enum class Binary { add, sub, mul, div, minimum, maximum };
enum class Reduction { sum, mean, max, min, var };

Tensor binary(Binary op, const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor where_less(const Tensor& a, const Tensor& b);
/// `axes` must not be empty or contain duplicates.
Tensor reduce(Reduction op, const Tensor& x, const std::vector<int>& axes, bool keepdim);
Tensor argmax(const Tensor& x, int axis);
Tensor cumsum(const Tensor& x, int axis);
Tensor transpose(const Tensor& x, const std::vector<int>& axes);
/// x[begin[i] : end[i] : step[i]] on every axis.
Tensor slice(const Tensor& x, const std::vector<int>& begin, const std::vector<int>& end,
             const std::vector<int>& step);

// The functions of weft/xtensor.h, wrapped.
bool view_shares_memory(const Tensor& x);
void add_one_through_view(const Tensor& x);
double sum_through_view(const Tensor& x);
/// A tensor made from an array that holds 0, 1, 2, ...; `memory` receives the array's data pointer.
Tensor made_from_array(const std::vector<int>& shape, const void** memory);
void view_as_f32(const Tensor& x);

}  // namespace weft::oracle
