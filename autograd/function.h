#pragma once
#include <utility>

#include "weft/autograd/tape.h"

namespace weft {

/// Defines a custom op with its own backward:
///
///   Tensor cube(const Tensor& x) {
///     return custom_function(
///         "cube", {x}, [](const TensorList& in) { return in[0] * in[0] * in[0]; },
///         [](const TensorList& in, const Tensor& y, const Tensor& dy) {
///           return TensorList{dy * in[0] * in[0] * 3};
///         });
///   }
///
/// forward(inputs) -> y is not recorded. backward(inputs, y, dy) returns one gradient per input,
/// null for none; if it uses public ops it can be differentiated again.
///
/// Saves    all inputs and y
/// Throws   Error when forward returns a null tensor, backward returns a wrong number of gradients
///          or one whose shape or dtype is not its input's, or an input was changed in place
template <class Forward, class BackwardFn>
Tensor custom_function(const char* name, const TensorList& inputs, Forward&& forward,
                       BackwardFn backward) {
  Tensor y;
  {
    NoGradGuard off;
    y = forward(inputs);
  }
  check(y.defined(), "{}: forward must return a tensor, got a null handle", name);
  bool followed = false;
  for (const Tensor& x : inputs) followed = followed || recording(x);
  if (!followed || !is_compute(y.dtype())) return y;
  check(inputs.size() <= 8, "{}: a custom function takes at most 8 inputs, got {}", name,
        inputs.size());
  y = y.detach();  // forward may return an input or a tensor that the caller keeps
  SavedList saved;
  for (const Tensor& x : inputs) saved.add(x, "an input");
  Tape::record(name, inputs, TensorList{y},
               [name, saved, sy = save(y, "y"), backward = std::move(backward)](Backward& b) {
                 const TensorList in = saved.get();
                 const TensorList dx = backward(in, sy.get(), b.dy());
                 check(dx.size() == in.size(), "{}: backward must return {} gradients, got {}",
                       name, in.size(), dx.size());
                 for (int i = 0; i < dx.size(); ++i) {
                   if (!dx[i].defined() || !b.needs(i)) continue;
                   check(dx[i].shape() == in[i].shape() && dx[i].dtype() == in[i].dtype(),
                         "{}: the gradient of input {} must have shape {} and dtype {}, got {} "
                         "and {}",
                         name, i, in[i].shape(), in[i].dtype(), dx[i].shape(), dx[i].dtype());
                   b.add(i, dx[i]);
                 }
               });
  return y;
}

}  // namespace weft
