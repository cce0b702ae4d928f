#include "weft/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/core/cuda_graph.h"
#include "weft/core/error.h"
#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/numbers.h"

namespace weft {
namespace {

// Headers that this thread dropped, for its next tensors. Bounded: a thread that only drops the
// tensors of another one would collect them without limit.
struct ImplCache {
  static constexpr int kMost = 1 << 16;
  TensorImpl* head = nullptr;
  int count = 0;
  bool alive = true;
  ~ImplCache() {
    alive = false;
    while (TensorImpl* t = head) {
      head = t->grad;
      delete t;
    }
  }
};
thread_local ImplCache impl_cache;

void release(MainGrad* main) {
  main->sum->release();
  if (main->reached) main->reached->release();
  delete main;
}

Tensor make(const Shape& shape, DType dtype, Storage* storage) {
  TensorImpl* impl = TensorImpl::create();
  impl->dtype = dtype;
  impl->storage = storage;
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  return Tensor::adopt(impl);
}

}  // namespace

TensorImpl* TensorImpl::create() {
  TensorImpl* t = impl_cache.head;
  if (!t) return new TensorImpl;
  impl_cache.head = t->grad;
  --impl_cache.count;
  t->grad = nullptr;
  t->refs.restart();
  return t;
}

void TensorImpl::recycle(TensorImpl* t) {
  if (t->storage) t->storage->release();
  if (t->grad) t->grad->release();
  if (t->main_grad) weft::release(t->main_grad);
  t->storage = nullptr;
  t->main_grad = nullptr;
  t->requires_grad = false;
  t->leaf = true;
  t->offset = 0;
  t->tape_id = 0;
  if (!impl_cache.alive || impl_cache.count == ImplCache::kMost) {
    delete t;
    return;
  }
  t->grad = impl_cache.head;  // doubles as the link of the free list
  impl_cache.head = t;
  ++impl_cache.count;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  const std::int64_t n = checked_numel("empty", shape);
  const auto bytes = n * static_cast<std::int64_t>(size_of(dtype));
  return make(shape, dtype, allocate_storage(bytes, device, is_floating(dtype)));
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  check_element("full", dtype, value);
  return Tensor(empty(shape, dtype, device)).fill_(value);
}
Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}
Tensor Tensor::ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1, dtype, device);
}

Tensor Tensor::arange(double start, double end, double step, DType dtype, Device device) {
  check(step != 0 && (end - start) / step >= 0,
        "arange: step must lead from start {} to end {}, got {}", start, end, step);
  const double count = std::ceil((end - start) / step);
  check(count < 0x1p56, "arange: too many elements from {} to {} in steps of {}", start, end, step);
  const auto n = static_cast<std::int64_t>(count);
  check_element("arange", dtype, start);
  check_operand("arange", dtype, step);
  if (n > 0) check_element("arange", dtype, start + static_cast<double>(n - 1) * step);
  Tensor out = empty({n}, dtype);
  dispatch_all(dtype, [&]<class T>() {
    T* p = out.data<T>();
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {  // f64 may not hold an i64
      const auto first = static_cast<std::int64_t>(start), by = static_cast<std::int64_t>(step);
      for (std::int64_t i = 0; i < n; ++i) p[i] = static_cast<T>(first + i * by);
    } else {
      for (std::int64_t i = 0; i < n; ++i) p[i] = convert<T>(start + static_cast<double>(i) * step);
    }
  });
  return out.to(device);
}

Tensor Tensor::eye(std::int64_t n, DType dtype, Device device) {
  Tensor out = zeros({n, n}, dtype);
  out.alias({n}, {n + 1}, 0).fill_(1);
  return out.to(device);
}

Tensor Tensor::linspace(double start, double end, std::int64_t n, DType dtype, Device device) {
  check(n >= 0, "linspace: n must be at least 0, got {}", n);
  check(is_compute(dtype), "linspace: dtype must be one of f32, f64, bf16, f16, got {}", dtype);
  Tensor out = empty({n}, DType::f64);
  double* p = out.data<double>();
  // From both ends, so that the last number is exactly `end`.
  const double step = n > 1 ? (end - start) / static_cast<double>(n - 1) : 0;
  for (std::int64_t i = 0; i < n; ++i)
    p[i] = i < (n + 1) / 2 ? start + static_cast<double>(i) * step
                           : end - static_cast<double>(n - 1 - i) * step;
  return out.to(dtype).to(device);
}

Tensor Tensor::of(std::initializer_list<std::initializer_list<double>> rows, DType dtype) {
  const std::size_t width = rows.size() ? rows.begin()->size() : 0;
  Tensor out =
      empty({static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(width)}, DType::f64);
  double* p = out.data<double>();
  for (const std::initializer_list<double>& row : rows) {
    check(row.size() == width, "of: every row must have {} values, got {}", width, row.size());
    for (const double v : row) check_element("of", dtype, *p++ = v);
  }
  return out.to(dtype);
}

Tensor Tensor::of(std::initializer_list<double> values, const Shape& shape, DType dtype) {
  for (const double v : values) check_element("of", dtype, v);
  return from_bytes(values.begin(), static_cast<std::int64_t>(values.size()), shape, DType::f64)
      .to(dtype);
}

Tensor Tensor::from_bytes(const void* data, std::int64_t count, const Shape& shape, DType dtype) {
  const std::int64_t n = checked_numel("from", shape);
  check(count == n, "from: shape {} needs {} values, got {}", shape, n, count);
  Tensor out = empty(shape, dtype);
  if (count) std::memcpy(out.raw(), data, static_cast<std::size_t>(count) * size_of(dtype));
  return out;
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype, void (*deleter)(void*),
                    void* context) {
  const std::int64_t n = checked_numel("wrap", shape);
  check(data != nullptr || n == 0, "wrap: data must not be null for shape {}", shape);
  const auto bytes = n * static_cast<std::int64_t>(size_of(dtype));
  return make(shape, dtype, wrap_storage(data, bytes, deleter, context));
}

bool Tensor::is_contiguous() const {
  const TensorImpl& t = at("is_contiguous");
  std::int64_t step = 1;
  for (int i = t.shape.size() - 1; i >= 0; --i) {
    const std::int64_t d = t.shape[i];
    if (d == 0) return true;
    if (d != 1 && t.strides[i] != step) {
      // An empty axis further left makes the tensor empty, hence contiguous.
      return t.shape.numel() == 0;
    }
    step *= d;
  }
  return true;
}

Tensor Tensor::alias(const Shape& shape, const Shape& strides, std::int64_t offset) const {
  const TensorImpl& whole = at("alias");
  TensorImpl* impl = TensorImpl::create();
  impl->dtype = whole.dtype;
  impl->storage = whole.storage;
  impl->storage->retain();
  impl->offset = whole.offset + offset;
  impl->shape = shape;
  impl->strides = strides;
  return adopt(impl);
}

Tensor Tensor::detach() const {
  const TensorImpl& t = at("detach");
  return alias(t.shape, t.strides, 0);
}

void Tensor::check_gradient(const char* op, const Tensor& g) const {
  if (g.defined() && (g.shape() != shape() || g.device() != device())) [[unlikely]]
    detail::raise(Fault::user, "{}: the gradient must be {} on {} like its tensor, got {} on {}",
                  {op, shape(), device(), g.shape(), g.device()});
}

void Tensor::set_grad(const Tensor& g) const {
  TensorImpl& t = at("set_grad");
  check_gradient("set_grad", g);
  replace(t.grad, g);
}

Tensor& Tensor::set_requires_grad(bool on) {
  at("set_requires_grad");
  check(!on || is_compute(dtype()),
        "set_requires_grad: dtype must be one of f32, f64, bf16, f16, got {}", dtype());
  // It would lose its place in the recording, and its inputs would lose their gradient.
  check(impl_->leaf || !impl_->requires_grad,
        "set_requires_grad: the tensor must be a leaf, got the output of a recorded op with shape "
        "{}; detach() it first",
        shape());
  impl_->requires_grad = on;
  return *this;
}

void Tensor::replace(TensorImpl*& slot, const Tensor& value) {
  if (value.impl_) value.impl_->retain();
  TensorImpl* old = std::exchange(slot, value.impl_);
  if (old) old->release();
}

void Tensor::set_main_grad(const Tensor& g, const Tensor& reached) const {
  TensorImpl& t = at("set_main_grad");
  check_gradient("set_main_grad", g);
  MainGrad* main = nullptr;
  if (g.defined()) {
    main = new MainGrad{g.impl_, reached.impl_};
    g.impl_->retain();
    if (reached.defined()) reached.impl_->retain();
  }
  if (MainGrad* const old = std::exchange(t.main_grad, main)) weft::release(old);
}

void Tensor::set_main_grad(const Tensor& g) const { set_main_grad(g, Tensor()); }

bool Tensor::main_grad_filled() const {
  const MainGrad* const main = at("main_grad_filled").main_grad;
  if (!main || main->filled) return main != nullptr;
  const Storage& s = *main->sum->storage;
  return s.refs.load() == 1 && s.version != main->empty_at;
}

void Tensor::set_main_grad_filled(bool on) const {
  MainGrad* const main = at("set_main_grad_filled").main_grad;
  check(main != nullptr, "set_main_grad_filled: the tensor must have a main_grad, got none");
  const auto set = [on](MainGrad& m) {
    m.filled = on;
    m.empty_at = m.sum->storage->version;
  };
  set(*main);
  if (cuda::Graph* const graph = cuda::Graph::capturing())
    graph->before_replay([x = *this, set] {
      if (x.impl_->main_grad) set(*x.impl_->main_grad);
    });
}

double Tensor::item_double() const {
  check(impl_ != nullptr, "item: the tensor is null");
  check(numel() == 1, "item: needs exactly 1 element, got shape {}", shape());
  double v = 0;
  const Tensor host = to(kCpu);
  dispatch_all(dtype(), [&]<class T>() { v = static_cast<double>(*host.data<T>()); });
  return v;
}

std::int64_t Tensor::item_int() const {
  check(impl_ != nullptr, "item: the tensor is null");
  check(numel() == 1, "item: needs exactly 1 element, got shape {}", shape());
  if (dtype() == DType::i64) return *to(kCpu).data<std::int64_t>();
  const double v = item_double();
  check(v >= -0x1p63 && v < 0x1p63, "item: the value must fit an integer, got {}", v);
  return static_cast<std::int64_t>(v);
}

std::int64_t Tensor::item_int(int bits, bool is_signed) const {
  const std::int64_t v = item_int(), rest = v >> std::min(is_signed ? bits - 1 : bits, 63);
  check(rest == 0 || (is_signed && rest == -1), "item: the value must fit {} of {} bits, got {}",
        is_signed ? "an integer" : "an unsigned integer", bits, v);
  return v;
}

void Tensor::copy_to(std::span<double> out) const {
  check(static_cast<std::int64_t>(out.size()) == numel(),
        "copy_to: the buffer must hold {} values, got {}", numel(), out.size());
  const Tensor host = detach().to(kCpu).contiguous();
  dispatch_all(dtype(), [&]<class T>() {
    const T* p = host.data<T>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(p[i]);
  });
}

void Tensor::throw_null(const char* member) {
  detail::raise(Fault::user, "{}: the tensor is null", {member});
}

void Tensor::throw_no_axis(int i) const {
  detail::raise(Fault::user, "dim: axis must be in [{}, {}) for shape {}, got {}",
                {-ndim(), ndim(), shape(), i});
}

void Tensor::throw_wrong_type(DType asked) const {
  detail::raise(Fault::user, "data: the tensor's dtype is {}, got a request for {}",
                {dtype(), asked});
}

void Tensor::throw_no_data() const {
  if (impl_->storage->released)
    detail::raise(Fault::user, "data: the storage of this tensor {} was released", {shape()});
  detail::raise(Fault::user, "data: a tensor on device {} has no data on the host", {device()});
}

void release_storage(const Tensor& t, int owners) {
  check(t.defined(), "release_storage: t must be a tensor, got a null handle");
  if (t.storage()->shared_empty) return;
  const int others = t.impl()->refs.load() - 1 + t.storage()->refs.load() - 1;
  check(others < owners,
        "release_storage: the storage must have no other owner than the {} declared, got {}",
        owners, others + 1);
  empty_storage(t.storage());
}

Tensor empty_operand(DType dtype, Device device) { return Tensor::empty({0}, dtype, device); }

TensorList::TensorList(const TensorList& o) {
  for (const Tensor& t : o) push_back(t);
}
TensorList::TensorList(TensorList&& o) noexcept { swap(o); }
TensorList& TensorList::operator=(TensorList o) noexcept {
  swap(o);
  return *this;
}
void TensorList::swap(TensorList& o) noexcept {
  std::swap(heap_, o.heap_);
  std::swap(size_, o.size_);
  std::swap(room_, o.room_);
  for (int i = 0; i < kInline; ++i) std::swap(inline_[i], o.inline_[i]);
}
void TensorList::throw_no_item(int i) const {
  detail::raise(Fault::user, "list: the index must be in [0, {}), got {}", {size_, i});
}
void TensorList::push_back(Tensor t) {
  if (size_ == room_) {
    Tensor* bigger = new Tensor[2 * room_];
    for (int i = 0; i < size_; ++i) bigger[i] = std::move(begin()[i]);
    delete[] heap_;
    heap_ = bigger;
    room_ *= 2;
  }
  begin()[size_++] = std::move(t);
}

}  // namespace weft
