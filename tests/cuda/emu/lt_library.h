#pragma once
// The emulated cuBLASLt in tests: its plans, and epilogues that it refuses.
#include <atomic>

#include "weft/autograd/mlp.h"
#include "weft/cuda/emu/control.h"
#include "weft/cuda/gemm_choices.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::test {

/// Restores the emulated library at the end; forgets its plans before and after.
struct LtLibrary {
  emu::Control before = emu::control;
  LtLibrary() { cuda::GemmChoices::get().use(""); }
  ~LtLibrary() {
    emu::control = before;
    cuda::GemmChoices::get().use("");
  }
};

/// What refuse_epilogues() returns, and how often it was asked.
inline std::atomic<int> status_of_epilogues{0}, with_epilogue{0};

/// For emu::control.at_matmul.
inline int refuse_epilogues(std::uint32_t epilogue) {
  if (epilogue == 1) return 0;
  ++with_epilogue;
  return status_of_epilogues;
}

/// Outputs and gradients of an MLP with biases: 5 products with an epilogue, counted with the one
/// that a part has. GELU + AUX, its part with the bias, the second bias, DGELU + BGRAD, BGRADB.
inline constexpr int kMlpEpilogues = 5;
inline TensorList mlp_results(Device device) {
  Tape tape;
  TensorList leaves;
  for (const Tensor& t :
       {random({9, 8}, 1), random({16, 8}, 2), random({16}, 3), random({8, 16}, 4), random({8}, 5)})
    leaves.push_back(t.to(DType::f32).to(device).detach().set_requires_grad());
  const Tensor y = mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]);
  TensorList out = tape.gradients(y, leaves, random({9, 8}, 6, DType::f32).to(device));
  out.push_back(y);
  TensorList host;
  for (const Tensor& t : out) host.push_back(t.to(kCpu));
  return host;
}

}  // namespace weft::test
