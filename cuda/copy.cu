#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/elementwise_ops.h"
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

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  if (source.dtype() == out.dtype())  // only the width of an element matters
    return with_word(size_of(out.dtype()),
                     [&]<class Word>() { map<Word, Word>(out, Same{}, source); });
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
