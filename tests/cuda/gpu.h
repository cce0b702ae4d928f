#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/tests/support.h"

namespace weft::test {

/// Whether the GPU is emulated.
bool emulated();

/// Calls run() for every useful order of threads and blocks: forward, reverse and three random ones
/// on the emulated GPU, once on a real one.
void for_each_order(const std::function<void()>& run);

inline constexpr Device kGpu{Device::Kind::cuda, 0};

inline constexpr DType kEveryDType[] = {DType::f32,  DType::f64,    DType::bf16, DType::f16,
                                        DType::e4m3, DType::e5m2,   DType::i32,  DType::i64,
                                        DType::u8,   DType::boolean};
inline constexpr DType kNumbers[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                     DType::i32, DType::i64, DType::u8};
inline const std::vector<DType> kFloating = {DType::f32, DType::bf16, DType::f16, DType::f64};

using Op = std::function<TensorList(const TensorList&)>;
/// f, which takes one tensor, as an Op.
template <class F>
Op one(F f) {
  return [f](const TensorList& in) { return TensorList{f(in[0])}; };
}

struct Agreement {
  std::vector<DType> dtypes = kFloating;
  double tolerance = 1;    ///< multiple of the dtype's tolerance
  bool gradients = true;   ///< compare these too, for a random cotangent
  bool all_orders = true;  ///< false for shapes that take long
  double terms = 0;        ///< in gradients: the size of the terms that cancel, see mismatch()
};

/// "" when op gives the same on the GPU, in every dtype and order, as on the CPU in f64, both
/// outputs and gradients of the floating inputs; else a sentence. Both start from the same values:
/// the f64 inputs rounded to the dtype. Inputs of other dtypes (indices) are passed on unchanged.
std::string disagreement(const Op& op, const TensorList& inputs, const Agreement& how = {});

}  // namespace weft::test
