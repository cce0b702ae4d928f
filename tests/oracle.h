#pragma once
#include <vector>

#include "weft/core/tensor.h"

/// The same array arithmetic by xtensor, an independent implementation. Everything is f64 and every
/// result is a fresh contiguous tensor. xtensor compiles slowly: only oracle.cpp includes it.
namespace weft::oracle {

enum class Binary { add, sub, mul, div, minimum, maximum };
enum class Reduction { sum, mean, max, min, var };

Tensor binary(Binary op, const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor where_less(const Tensor& a, const Tensor& b);
/// `axes` not empty, without repetition.
Tensor reduce(Reduction op, const Tensor& x, const std::vector<int>& axes, bool keepdim);
Tensor argmax(const Tensor& x, int axis);
Tensor cumsum(const Tensor& x, int axis);
Tensor transpose(const Tensor& x, const std::vector<int>& axes);
/// x[begin[i] : end[i] : step[i]] on every axis.
Tensor slice(const Tensor& x, const std::vector<int>& begin, const std::vector<int>& end,
             const std::vector<int>& step);

// What weft/xtensor.h does, behind functions.
bool view_shares_memory(const Tensor& x);
void add_one_through_view(const Tensor& x);
double sum_through_view(const Tensor& x);
/// A tensor made from an array that holds 0, 1, 2, ...; `memory` is where the array kept them.
Tensor made_from_array(const std::vector<int>& shape, const void** memory);
void view_as_f32(const Tensor& x);

}  // namespace weft::oracle
