#pragma once
#include <concepts>
#include <type_traits>

#include "weft/core/tensor.h"

namespace weft {

namespace detail {
template <class T>
concept NotBool = std::is_arithmetic_v<T> && !std::same_as<T, bool>;
}  // namespace detail

// `dims` are the axes to reduce, in any order, negative ones from the end; {} means all.
// `keepdim` keeps them with length 1. Every gradient can be differentiated again. Floating sums run
// in f32 over short blocks, then in f64, in an order that depends on the shape alone.

/// The sum, or the mean, over axes.
///
/// Shapes   x (...)  ->  x's shape without `dims` (or with 1 there)
/// Dtypes   sum: f32, f64, bf16, f16 to their own; i32, i64, u8, bool to i64. mean: f32, f64, bf16,
///          f16
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on a dim out of range or given twice, on other dtypes
/// Source   definition; over no elements the sum is 0 and the mean NaN
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

/// Sums x down to a shape that broadcasts to x's shape: the backward of broadcasting.
///
/// Shapes   x (...)  ->  shape
/// Dtypes   as sum
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error when shape does not broadcast to x's shape
/// Source   definition
Tensor sum_to(const Tensor& x, const Shape& shape);

/// The largest or smallest value, of all elements or along one axis. NaN wins.
///
/// Shapes   x (...)  ->  a scalar, or x's shape without `dim` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8
/// Device   cpu, cuda, meta
/// Saves    the index of each result; if several are equal, the first one gets the gradient
/// Throws   Error on a dim out of range, on an empty axis, on other dtypes
/// Source   definition
Tensor max(const Tensor& x);
Tensor max(const Tensor& x, int dim, bool keepdim = false);
Tensor min(const Tensor& x);
Tensor min(const Tensor& x, int dim, bool keepdim = false);

/// The index of the first largest or smallest value along an axis, i64. No gradient passes.
///
/// Shapes   x (...)  ->  x's shape without `dim` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16, i32, i64, u8  ->  i64
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on a dim out of range, on an empty axis, on other dtypes
/// Source   definition; a NaN counts as the largest and the smallest
Tensor argmax(const Tensor& x, int dim = -1, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim = -1, bool keepdim = false);

/// The variance: the sum of squared differences from the mean, divided by n - correction;
/// correction 1 gives the unbiased estimate. If n <= correction: infinity, or NaN for constant x.
/// To keep the axes write var(x, dims, 1, true); var(x, dims, true) does not compile.
///
/// Shapes   x (...)  ->  x's shape without `dims` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16; sums in f64
/// Device   cpu, cuda, meta
/// Saves    x and the mean
/// Throws   Error on a dim out of range or given twice, on other dtypes
/// Source   two passes: the mean of squares minus the square of the mean cancels
Tensor var(const Tensor& x, const Dims& dims = {}, int correction = 1, bool keepdim = false);
template <std::same_as<bool> Keepdim>
Tensor var(const Tensor& x, const Dims& dims, Keepdim, bool = false) = delete;
/// The standard deviation, the square root of var(), rounded once. Where it is 0 the gradient is 0.
Tensor stddev(const Tensor& x, const Dims& dims = {}, int correction = 1, bool keepdim = false);
template <std::same_as<bool> Keepdim>
Tensor stddev(const Tensor& x, const Dims& dims, Keepdim, bool = false) = delete;

/// The product of all elements, or along one axis, by halves: products of products.
///
/// Shapes   x (...)  ->  a scalar, or x's shape without `dim` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16 (multiplied in f32) to their own; i32, i64, u8, bool to i64
/// Device   cpu, cuda, meta
/// Saves    the halves of each step: about 2 times x
/// Throws   Error on a dim out of range, on other dtypes
/// Source   definition; the product of no elements is 1. The gradient is exact where x has zeros
Tensor prod(const Tensor& x);
Tensor prod(const Tensor& x, int dim, bool keepdim = false);

/// (sum of |x|^p)^(1/p); the largest |x| for p = infinity. p comes after `keepdim`: norm(x, {-1},
/// false, 1). A number alone is p: norm(x, 1) is the sum of all |x|; axes are in braces or a Dims.
///
/// Shapes   x (...)  ->  a scalar, or x's shape without `dims` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16; sums in f64
/// Device   cpu, cuda, meta
/// Saves    x and the result
/// Throws   Error unless p > 0; for p = infinity over no elements; on a dim out of range or given
///          twice, on other dtypes
/// Source   definition; where the norm is 0 the gradient is 0; for p other than 2 it is also 0 at
///          every element that is 0, in second order too. For p = infinity, if several |x| are the
///          largest, the first one gets the gradient
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false, double p = 2);
template <detail::NotBool P>
Tensor norm(const Tensor& x, P p) {
  return norm(x, {}, false, static_cast<double>(p));
}
// Do not compile: the number could be p or an axis, and as `keepdim` it would be true.
template <detail::NotBool P>
Tensor norm(const Tensor& x, P p, bool keepdim, double = 2) = delete;
template <detail::NotBool P>
Tensor norm(const Tensor& x, const Dims& dims, P p, double = 2) = delete;

/// ln(sum of e^x) along an axis, without overflow.
///
/// Shapes   x (...)  ->  x's shape without `dim` (or with 1 there)
/// Dtypes   f32, f64, bf16, f16; sums in f64
/// Device   cpu, cuda, meta
/// Saves    x and the result
/// Throws   Error on a dim out of range, on other dtypes
/// Source   the largest x is factored out of the sum; over no elements the result is -infinity
Tensor logsumexp(const Tensor& x, int dim = -1, bool keepdim = false);

/// y[i] = x[0] + ... + x[i] along an axis.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16 to their own; i32, i64, u8, bool to i64
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on a dim out of range, on other dtypes
/// Source   definition; the gradient is a cumulative sum from the other end
Tensor cumsum(const Tensor& x, int dim = -1);

}  // namespace weft
