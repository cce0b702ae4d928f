#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/copy.h"
#include "weft/cuda/strided.h"

namespace weft::cuda {
namespace {

struct Same {
  template <class T>
  __device__ T operator()(T v) const {
    return v;
  }
};

template <class To>
struct Converted {
  template <class From>
  __device__ To operator()(From v) const {
    return convert<To>(v);
  }
};

template <class To>
struct Constant {
  To value;
  __device__ To operator()() const { return value; }
};

// Without a conversion only the width of an element matters.
template <class Word>
void move_values(const Tensor& source, const Tensor& out) {
  map<Word, Word>(out, Same{}, source);
}

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  if (source.dtype() == out.dtype()) {
    switch (size_of(out.dtype())) {
      case 1:
        return move_values<std::uint8_t>(source, out);
      case 2:
        return move_values<std::uint16_t>(source, out);
      case 4:
        return move_values<std::uint32_t>(source, out);
      default:
        return move_values<std::uint64_t>(source, out);
    }
  }
  dispatch_all(source.dtype(), [&]<class From>() {
    dispatch_all(out.dtype(), [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>) map<To, From>(out, Converted<To>{}, source);
    });
  });
}

void fill(const Tensor& out, double value) {
  dispatch_all(out.dtype(), [&]<class T>() { map<T>(out, Constant<T>{convert<T>(value)}); });
}

}  // namespace weft::cuda
