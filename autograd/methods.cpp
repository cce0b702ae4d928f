// Members of Tensor that need ops: core/tensor.h declares them, each calls the free function.
#include <cstdint>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/in_place.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/numbers.h"

namespace weft {

Tensor Tensor::contiguous() const { return weft::contiguous(*this); }
Tensor Tensor::clone() const { return weft::clone(*this); }
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }
Tensor Tensor::to(Device device) const { return to_device(*this, device); }
Tensor Tensor::view(const Shape& shape) const { return weft::view(*this, shape); }
Tensor Tensor::reshape(const Shape& shape) const { return weft::reshape(*this, shape); }
Tensor Tensor::permute(const Dims& axes) const { return weft::permute(*this, axes); }
Tensor Tensor::transpose(int a, int b) const { return weft::transpose(*this, a, b); }
Tensor Tensor::expand(const Shape& shape) const { return weft::expand(*this, shape); }
Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t end, std::int64_t step) const {
  return weft::slice(*this, dim, begin, end, step);
}
Tensor Tensor::narrow(int dim, std::int64_t begin, std::int64_t length) const {
  return weft::narrow(*this, dim, begin, length);
}
Tensor Tensor::select(int dim, std::int64_t index) const { return weft::select(*this, dim, index); }
Tensor Tensor::squeeze(int dim) const { return weft::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int dim) const { return weft::unsqueeze(*this, dim); }
Tensor Tensor::flatten(int first, int last) const { return weft::flatten(*this, first, last); }
TensorList Tensor::split(std::int64_t size, int dim) const { return weft::split(*this, size, dim); }
TensorList Tensor::split(std::initializer_list<std::int64_t> sizes, int dim) const {
  return weft::split(*this, sizes, dim);
}
TensorList Tensor::split(std::span<const std::int64_t> sizes, int dim) const {
  return weft::split(*this, sizes, dim);
}
Tensor Tensor::index_select(int dim, const Tensor& index) const {
  return weft::index_select(*this, dim, index);
}
Tensor Tensor::gather(int dim, const Tensor& index) const {
  return weft::gather(*this, dim, index);
}

Tensor Tensor::operator-() const { return neg(*this); }
Tensor Tensor::exp() const { return weft::exp(*this); }
Tensor Tensor::log() const { return weft::log(*this); }
Tensor Tensor::sqrt() const { return weft::sqrt(*this); }
Tensor Tensor::rsqrt() const { return weft::rsqrt(*this); }
Tensor Tensor::abs() const { return weft::abs(*this); }
Tensor Tensor::tanh() const { return weft::tanh(*this); }
Tensor Tensor::sigmoid() const { return weft::sigmoid(*this); }
Tensor Tensor::relu() const { return weft::relu(*this); }
Tensor Tensor::square() const { return weft::square(*this); }
Tensor Tensor::pow(double exponent) const { return weft::pow(*this, exponent); }
Tensor Tensor::clamp(double low, double high) const { return weft::clamp(*this, low, high); }

Tensor Tensor::sum(const Dims& dims, bool keepdim) const { return weft::sum(*this, dims, keepdim); }
Tensor Tensor::mean(const Dims& dims, bool keepdim) const {
  return weft::mean(*this, dims, keepdim);
}
Tensor Tensor::max() const { return weft::max(*this); }
Tensor Tensor::max(int dim, bool keepdim) const { return weft::max(*this, dim, keepdim); }
Tensor Tensor::min() const { return weft::min(*this); }
Tensor Tensor::min(int dim, bool keepdim) const { return weft::min(*this, dim, keepdim); }
Tensor Tensor::argmax(int dim, bool keepdim) const { return weft::argmax(*this, dim, keepdim); }
Tensor Tensor::softmax(int dim) const { return weft::softmax(*this, dim); }
Tensor Tensor::matmul(const Tensor& other) const { return weft::matmul(*this, other); }

void detail::check_target(const char* op, const Tensor& t) {
  check_tensor(op, "the tensor", t);
  check(!(Tape::current() && Tape::follows(t)),
        "{}: cannot change a tensor that is part of a recording; use the out-of-place op, or a "
        "NoGradGuard, got shape {}",
        op, t.shape());
}

namespace {

using detail::check_target;

// An element that appears several times would be updated several times, by several threads.
void check_separate(const char* op, const Tensor& t) {
  if (t.is_contiguous()) return;  // empty tensors too: their strides may be 0
  bool repeated = false;
  for (int i = 0; i < t.ndim(); ++i) repeated = repeated || (t.strides()[i] == 0 && t.dim(i) > 1);
  check(!repeated, "{}: the tensor must not repeat its elements, got shape {} with strides {}", op,
        t.shape(), t.strides());
}

// Copying a recorded value into a plain tensor would silently drop its gradient.
void check_source(const char* op, const char* label, const Tensor& t) {
  check(!recording(t),
        "{}: {} is part of a recording, and its gradient would end here; give {}.detach(), or use "
        "the out-of-place op, got shape {}",
        op, label, label, t.shape());
}

struct Bytes {
  std::uintptr_t begin, end;
  bool meets(const Bytes& o) const { return begin < o.end && o.begin < end; }
};

// The byte range [begin, end) of a storage or of a tensor's elements.
Bytes bytes_of(const Storage& s) {
  const auto begin = reinterpret_cast<std::uintptr_t>(s.data);
  return {begin, begin + static_cast<std::uintptr_t>(s.bytes)};
}
Bytes bytes_of(const Tensor& t) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype()));
  std::int64_t low = t.offset(), high = low + 1;
  for (int i = 0; i < t.ndim(); ++i) {
    if (t.dim(i) == 0) return {0, 0};
    const std::int64_t reach = (t.dim(i) - 1) * t.strides()[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(t.storage()->data);
  return {begin + static_cast<std::uintptr_t>(low * size),
          begin + static_cast<std::uintptr_t>(high * size)};
}

bool same_places(const Tensor& a, const Tensor& b) {
  if (a.storage() != b.storage() || a.offset() != b.offset() || a.dtype() != b.dtype())
    return false;
  for (int i = 0; i < a.ndim(); ++i)
    if (a.dim(i) > 1 && a.strides()[i] != b.strides()[i]) return false;
  return true;
}

// True if a kernel that writes `out` could read elements of the source that it has already
// overwritten. Reading each element just before writing it (same_places) is safe.
bool overlaps(const Tensor& source, const Tensor& out) {
  const Storage &from = *source.storage(), &to = *out.storage();
  if (&from != &to && (from.data == nullptr || !bytes_of(from).meets(bytes_of(to)))) return false;
  return !same_places(source, out) && bytes_of(source).meets(bytes_of(out));
}

// A copy of the source if writing `out` would overwrite it while it is read; else null.
Tensor copy_if_overlapping(const Tensor& source, const Tensor& out) {
  if (!overlaps(source, out)) return {};
  const NoGradGuard off;
  return clone(source);
}

}  // namespace

const Tensor& Tensor::fill_(double value) const {
  detail::check_tensor("fill_", "the tensor", *this);
  check_element("fill_", dtype(), value);
  check_target("fill_", *this);
  bump_version();
  dispatch<cpu::fill, cuda::fill>(*this, value);
  return *this;
}

void Tensor::zero_grad() const {
  set_grad({});
  if (const Tensor main = main_grad(); main.defined()) {
    main.zero_();
    set_main_grad_filled(false);
  }
}

const Tensor& Tensor::copy_(const Tensor& source) const {
  detail::check_tensor("copy_", "the tensor", *this);
  detail::check_tensor("copy_", "source", source);
  check(source.shape() == shape(), "copy_: source must have shape {}, got {}", shape(),
        source.shape());
  check_separate("copy_", *this);
  check_target("copy_", *this);
  check_source("copy_", "source", source);
  bump_version();
  const bool moves = source.device() != device() && !source.is_meta() && !is_meta();
  if (moves && source.dtype() == dtype() && source.is_contiguous() && is_contiguous()) {
    cuda::detail::copy_across(source, *this);
    return *this;
  }
  const Tensor here = source.device() == device() ? copy_if_overlapping(source, *this)
                                                  : source.detach().to(device());
  dispatch<cpu::copy, cuda::copy>(here.defined() ? here : source, *this);
  return *this;
}

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  detail::check_tensor("add_", "the tensor", *this);
  detail::check_tensor("add_", "other", other);
  check(other.shape() == shape() && other.dtype() == dtype(),
        "add_: other must have shape {} and dtype {}, got {} and {}", shape(), dtype(),
        other.shape(), other.dtype());
  check(other.device() == device(), "add_: other must be on device {}, got {}", device(),
        other.device());
  check_operand("add_", dtype(), alpha);
  check_separate("add_", *this);
  check_target("add_", *this);
  check_source("add_", "other", other);
  bump_version();
  const Tensor apart = copy_if_overlapping(other, *this);
  detail::count_update(*this);
  dispatch<cpu::add_scaled, cuda::add_scaled>(apart.defined() ? apart : other, alpha, *this);
  return *this;
}

const Tensor& Tensor::mul_(double factor) const {
  detail::check_tensor("mul_", "the tensor", *this);
  check_operand("mul_", dtype(), factor);
  check_separate("mul_", *this);
  check_target("mul_", *this);
  bump_version();
  dispatch<cpu::scale, cuda::scale>(*this, factor);
  return *this;
}

namespace {

// x = op(x, other) in place, where add_() and mul_() do not do.
template <class Other>
const Tensor& assign(const char* name, const Tensor& x, const Other& other,
                     Tensor (*op)(const Tensor&, Other)) {
  check_target(name, x);
  if constexpr (std::is_same_v<Other, const Tensor&>) {
    detail::check_tensor(name, "y", other);
    check_source(name, "y", other);
  }
  const NoGradGuard off;
  const Tensor y = op(x, other);
  if constexpr (std::is_same_v<Other, const Tensor&>)
    check(y.shape() == x.shape(), "{}: y must broadcast to shape {}, got {}", name, x.shape(),
          other.shape());
  return x.copy_(y);
}

bool alike(const Tensor& x, const Tensor& other) {
  return x.defined() && other.defined() && x.shape() == other.shape();
}

}  // namespace

const Tensor& Tensor::operator+=(const Tensor& other) const {
  return alike(*this, other) ? add_(other) : assign<const Tensor&>("+=", *this, other, add);
}
const Tensor& Tensor::operator-=(const Tensor& other) const {
  return alike(*this, other) ? add_(other, -1) : assign<const Tensor&>("-=", *this, other, sub);
}
const Tensor& Tensor::operator*=(const Tensor& other) const {
  return assign<const Tensor&>("*=", *this, other, mul);
}
const Tensor& Tensor::operator/=(const Tensor& other) const {
  return assign<const Tensor&>("/=", *this, other, div);
}
const Tensor& Tensor::operator+=(double number) const {
  return assign<double>("+=", *this, number, add);
}
const Tensor& Tensor::operator-=(double number) const {
  return assign<double>("-=", *this, number, sub);
}
const Tensor& Tensor::operator*=(double number) const { return mul_(number); }
const Tensor& Tensor::operator/=(double number) const {
  return assign<double>("/=", *this, number, div);
}

}  // namespace weft
