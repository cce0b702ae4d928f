#pragma once

namespace weft {
class Tensor;

namespace detail {

/// Throws Error on a null handle, and on a tensor that is part of a recording, which a write would
/// invalidate. Defined in autograd/methods.cpp, since core/ does not know the tape.
void check_target(const char* op, const Tensor& t);

}  // namespace detail
}  // namespace weft
