#pragma once
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <type_traits>
#include <utility>

#include "weft/core/atomic_cells.h"
#include "weft/core/device.h"
#include "weft/core/dims.h"
#include "weft/core/dtype.h"
#include "weft/core/shape.h"
#include "weft/core/storage.h"

namespace weft {

class Tensor;
class TensorList;

/// End of the axis for slice(); ranges are half-open, and negative bounds count from the end.
inline constexpr std::int64_t kEnd = INT64_MAX;

struct TensorImpl;

/// State behind main_grad() of a tensor.
struct MainGrad {
  TensorImpl* sum = nullptr;
  TensorImpl* reached = nullptr;  ///< see Tensor::set_main_grad()
  std::uint32_t empty_at = 0;     ///< version of the sum's storage when it was declared empty
  bool filled = true;
};

/// The object behind a Tensor handle. Recycled like memory blocks: creating and dropping tensors in
/// a warm loop allocates nothing.
struct TensorImpl {
  RefCount refs;
  DType dtype = DType::f32;
  bool requires_grad = false;
  bool leaf = true;  ///< not the output of a recorded op
  Storage* storage = nullptr;
  std::int64_t offset = 0;  ///< in elements
  Shape shape;
  Shape strides;              ///< in elements
  std::uint64_t tape_id = 0;  ///< position of a recorded op's output in its recording; 0 for a leaf
  /// The thread whose backward() currently adds to the gradient of this leaf; see autograd/tape.h.
  Claim grad_writer;
  TensorImpl* grad = nullptr;
  MainGrad* main_grad = nullptr;

  void retain() { refs.retain(); }
  void release() {
    if (refs.release()) recycle(this);
  }
  static TensorImpl* create();
  static void recycle(TensorImpl* impl);
};

/// A handle (one pointer) to shape, strides, dtype, device, storage and gradient. Copying it copies
/// no data; views share storage. A default-constructed Tensor is null.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor& o) : impl_(o.impl_) {
    if (impl_) impl_->retain();
  }
  Tensor(Tensor&& o) noexcept : impl_(std::exchange(o.impl_, nullptr)) {}
  Tensor& operator=(const Tensor& o) & {
    Tensor copy(o);
    std::swap(impl_, copy.impl_);
    return *this;
  }
  Tensor& operator=(Tensor&& o) & noexcept {
    std::swap(impl_, o.impl_);
    return *this;
  }
  /// Does not compile: it would change a handle that is dropped at once, and no value.
  template <class T>
  void operator=(const T&) && {
    static_assert(sizeof(T) == 0,
                  "an assignment to a view writes nothing: use x[0].copy_(y) or x[0].fill_(5)");
  }
  ~Tensor() {
    if (impl_) impl_->release();
  }

  // Construction (core/tensor.cpp).
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
  static Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32,
                     Device device = kCpu);
  /// start, start + step, ... up to but excluding end.
  static Tensor arange(double start, double end, double step = 1, DType dtype = DType::f32,
                       Device device = kCpu);
  /// The identity matrix (n, n).
  static Tensor eye(std::int64_t n, DType dtype = DType::f32, Device device = kCpu);
  /// n numbers in equal steps from start to end, both included.
  static Tensor linspace(double start, double end, std::int64_t n, DType dtype = DType::f32,
                         Device device = kCpu);
  /// Copies values in row-major order: Tensor::of({1, 2, 3, 4}, {2, 2}).
  static Tensor of(std::initializer_list<double> values, const Shape& shape,
                   DType dtype = DType::f32);
  /// One axis, or rows of one length: Tensor::of({1, 2, 3}), Tensor::of({{1, 2}, {3, 4}}). Both
  /// forms fit rows of one value, {{1}, {2}}; being a template, this one then yields to the other.
  template <class = void>
  static Tensor of(std::initializer_list<double> values, DType dtype = DType::f32) {
    return of(values, {static_cast<std::int64_t>(values.size())}, dtype);
  }
  static Tensor of(std::initializer_list<std::initializer_list<double>> rows,
                   DType dtype = DType::f32);
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    return from_bytes(values.data(), static_cast<std::int64_t>(values.size()), shape,
                      dtype_of<T>());
  }
  /// Copies a std::vector or std::array; one axis, unless a shape is given.
  template <class Values, class T = typename Values::value_type>
  static Tensor from(const Values& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class Values, class T = typename Values::value_type>
  static Tensor from(const Values& values) {
    return from(std::span<const T>(values), {static_cast<std::int64_t>(values.size())});
  }
  /// A tensor over memory owned by the caller; `deleter(context)` runs when the last handle ends.
  /// Throws Error on a negative axis, and on null data for a tensor that has elements.
  static Tensor wrap(void* data, const Shape& shape, DType dtype, void (*deleter)(void*) = nullptr,
                     void* context = nullptr);

  // Inspection.
  /// False for a null handle.
  bool defined() const { return impl_ != nullptr; }
  /// Does not compile: neither the values of a tensor nor a mask are a condition.
  template <class B, class = std::enable_if_t<std::is_same_v<B, bool>>>
  explicit operator B() const {
    static_assert(sizeof(B) == 0,
                  "a tensor is not a condition: take item() of one element, any() or all() and "
                  "logical_and() of masks, defined() to ask for a null handle");
    return false;
  }
  // The members below throw Error "shape: the tensor is null" on a null handle.
  const Shape& shape() const { return at("shape").shape; }
  /// The strides of an axis of length 1, and of an empty tensor, carry no information.
  const Shape& strides() const { return at("strides").strides; }
  int ndim() const { return at("ndim").shape.size(); }
  /// Length of axis i; negative i counts from the end.
  /// Throws Error when there is no such axis.
  std::int64_t dim(int i) const {
    const Shape& s = at("dim").shape;
    const int axis = i < 0 ? i + s.size() : i;
    if (static_cast<unsigned>(axis) >= static_cast<unsigned>(s.size())) [[unlikely]]
      throw_no_axis(i);
    return s[axis];
  }
  std::int64_t numel() const { return at("numel").shape.numel(); }
  std::int64_t offset() const { return at("offset").offset; }
  DType dtype() const { return at("dtype").dtype; }
  Device device() const { return at("device").storage->device; }
  bool is_meta() const { return device().is_meta(); }
  bool is_contiguous() const;
  /// Typed pointer to the first element.
  /// Throws Error when T is not the dtype, on the meta device, and after release_storage().
  template <class T>
  T* data() const {
    if (dtype_of<T>() != at("data").dtype) [[unlikely]]
      throw_wrong_type(dtype_of<T>());
    return static_cast<T*>(raw());
  }
  void* raw() const {
    const TensorImpl& t = at("raw");
    if (t.storage->data == nullptr && t.shape.numel() != 0) [[unlikely]]
      throw_no_data();
    return static_cast<char*>(t.storage->data) +
           t.offset * static_cast<std::int64_t>(size_of(t.dtype));
  }
  /// The value of a one-element tensor of any dtype, converted.
  /// Throws Error when it has not exactly one element or an integer T cannot hold it, and on meta.
  template <class T = double>
  T item() const {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return static_cast<T>(item_int(8 * sizeof(T), std::is_signed_v<T>));
    else
      return static_cast<T>(item_double());
  }
  /// As item(), without converting to double: every i64 is exact.
  std::int64_t item_int() const;
  /// Copies every element out as double, row-major.
  void copy_to(std::span<double> out) const;
  Storage* storage() const { return at("storage").storage; }
  std::uint32_t version() const { return at("version").storage->version; }
  /// Records an in-place write, so that a backward that saved the old value detects it. Does
  /// nothing on the shared empty storage, which has no values.
  void bump_version() const {
    Storage* s = storage();
    if (!s->shared_empty) ++s->version;
  }
  TensorImpl* impl() const { return impl_; }
  bool same(const Tensor& o) const { return impl_ == o.impl_; }

  // Gradients.
  bool requires_grad() const { return impl_ && impl_->requires_grad; }
  /// Marks a leaf whose gradient backward() should fill.
  /// Throws Error on a dtype in which no floating-point op computes, and on the output of a
  /// recorded op.
  Tensor& set_requires_grad(bool on = true);
  /// The gradient of a leaf; null before backward().
  Tensor grad() const { return handle(at("grad").grad); }
  /// Throws Error when g has another shape or device.
  void set_grad(const Tensor& g) const;
  /// The buffer (f64 for f64, else f32 or bf16) to which backward() adds instead of grad(); or
  /// null.
  Tensor main_grad() const {
    const MainGrad* const main = at("main_grad").main_grad;
    return handle(main ? main->sum : nullptr);
  }
  /// Makes g the main_grad(); its contents count as a gradient until zero_grad(). `reached`: null,
  /// or one f64 on the device of g that an optimizer on a GPU also tests; it is 0 where no rank of
  /// the job has a gradient.
  /// Throws Error when g has another shape or device.
  void set_main_grad(const Tensor& g, const Tensor& reached) const;
  void set_main_grad(const Tensor& g) const;
  /// True when main_grad() holds a gradient: backward() has added to it since zero_grad(), or other
  /// code has written to a buffer that has its own storage.
  bool main_grad_filled() const;
  /// A call during the capture of a cuda::Graph also acts at each replay.
  void set_main_grad_filled(bool on) const;
  /// Drops grad(); sets main_grad() to 0 and marks it as holding no gradient.
  void zero_grad() const;
  /// Runs the innermost tape of this thread backward from this scalar (or with the cotangent dy).
  void backward() const;
  void backward(const Tensor& dy) const;
  /// The same values as a leaf outside every tape; shares storage.
  Tensor detach() const;

  /// A view over the same storage with its own shape, strides and offset, outside every tape.
  Tensor alias(const Shape& shape, const Shape& strides, std::int64_t offset) const;

  // Ops as members: defined in autograd/methods.cpp, documented at the free function.
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor view(const Shape& shape) const;
  Tensor reshape(const Shape& shape) const;
  Tensor permute(const Dims& axes) const;
  Tensor transpose(int a, int b) const;
  Tensor t() const { return transpose(-2, -1); }
  Tensor expand(const Shape& shape) const;
  Tensor slice(int dim, std::int64_t begin, std::int64_t end = kEnd, std::int64_t step = 1) const;
  Tensor narrow(int dim, std::int64_t begin, std::int64_t length) const;
  Tensor select(int dim, std::int64_t index) const;
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  Tensor squeeze(int dim) const;
  Tensor unsqueeze(int dim) const;
  Tensor flatten(int first = 0, int last = -1) const;
  TensorList split(std::int64_t size, int dim = 0) const;
  TensorList split(std::initializer_list<std::int64_t> sizes, int dim = 0) const;
  TensorList split(std::span<const std::int64_t> sizes, int dim = 0) const;
  Tensor index_select(int dim, const Tensor& index) const;
  Tensor gather(int dim, const Tensor& index) const;

  Tensor operator-() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor abs() const;
  Tensor tanh() const;
  Tensor sigmoid() const;
  Tensor relu() const;
  Tensor square() const;
  Tensor pow(double exponent) const;
  Tensor clamp(double low, double high) const;

  Tensor sum(const Dims& dims = {}, bool keepdim = false) const;
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const;
  Tensor max() const;
  Tensor max(int dim, bool keepdim = false) const;
  Tensor min() const;
  Tensor min(int dim, bool keepdim = false) const;
  Tensor argmax(int dim = -1, bool keepdim = false) const;
  Tensor softmax(int dim = -1) const;
  Tensor matmul(const Tensor& other) const;

  // In place. Each increments the version and throws on a tensor that is part of a recording. A
  // source that is part of one is refused too, since its gradient would be cut off. A source that
  // shares memory with the tensor is read before the write. Numbers for integers: see
  // autograd/elementwise.h.
  const Tensor& fill_(double value) const;
  const Tensor& zero_() const { return fill_(0); }
  const Tensor& copy_(const Tensor& source) const;
  const Tensor& add_(const Tensor& other, double alpha = 1) const;
  const Tensor& mul_(double factor) const;
  // x += y and the like write to x's memory, which views and other handles share. The right side
  // broadcasts to x's shape.
  const Tensor& operator+=(const Tensor& other) const;
  const Tensor& operator-=(const Tensor& other) const;
  const Tensor& operator*=(const Tensor& other) const;
  const Tensor& operator/=(const Tensor& other) const;
  const Tensor& operator+=(double number) const;
  const Tensor& operator-=(double number) const;
  const Tensor& operator*=(double number) const;
  const Tensor& operator/=(double number) const;

  /// Takes over one reference.
  static Tensor adopt(TensorImpl* impl) {
    Tensor t;
    t.impl_ = impl;
    return t;
  }
  static Tensor handle(TensorImpl* impl) {
    if (impl) impl->retain();
    return adopt(impl);
  }

 private:
  /// The object behind the handle. `member` names the caller in the message.
  TensorImpl& at(const char* member) const {
    if (impl_ == nullptr) [[unlikely]]
      throw_null(member);
    return *impl_;
  }
  [[noreturn]] static void throw_null(const char* member);
  [[noreturn]] void throw_no_axis(int i) const;
  void check_gradient(const char* op, const Tensor& g) const;
  static Tensor from_bytes(const void* data, std::int64_t count, const Shape& shape, DType dtype);
  static void replace(TensorImpl*& slot, const Tensor& value);
  double item_double() const;
  std::int64_t item_int(int bits, bool is_signed) const;
  [[noreturn]] void throw_wrong_type(DType asked) const;
  [[noreturn]] void throw_no_data() const;

  TensorImpl* impl_ = nullptr;
};

/// A list of tensors, without heap allocation for up to 8.
class TensorList {
 public:
  TensorList() = default;
  TensorList(std::initializer_list<Tensor> items) {
    for (const Tensor& t : items) push_back(t);
  }
  /// Of a std::vector, std::array or std::span of tensors.
  template <class Items, class = std::enable_if_t<
                             std::is_same_v<std::remove_cv_t<typename Items::value_type>, Tensor>>>
  TensorList(const Items& items) {
    for (const Tensor& t : items) push_back(t);
  }
  TensorList(TensorList&& o) noexcept;
  TensorList(const TensorList& o);
  TensorList& operator=(TensorList o) noexcept;
  ~TensorList() { delete[] heap_; }

  void push_back(Tensor t);
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Throws Error when the index is out of range.
  Tensor& operator[](int i) { return begin()[checked(i)]; }
  const Tensor& operator[](int i) const { return begin()[checked(i)]; }
  Tensor* begin() { return heap_ ? heap_ : inline_; }
  Tensor* end() { return begin() + size_; }
  const Tensor* begin() const { return heap_ ? heap_ : inline_; }
  const Tensor* end() const { return begin() + size_; }

 private:
  void swap(TensorList& o) noexcept;
  int checked(int i) const {
    if (static_cast<unsigned>(i) >= static_cast<unsigned>(size_)) [[unlikely]]
      throw_no_item(i);
    return i;
  }
  [[noreturn]] void throw_no_item(int i) const;
  static constexpr int kInline = 8;
  Tensor inline_[kInline];
  Tensor* heap_ = nullptr;
  int size_ = 0, room_ = kInline;
};

inline Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}
inline Tensor zeros_like(const Tensor& x) {
  return Tensor::zeros(x.shape(), x.dtype(), x.device());
}

/// Frees the memory of `t` for every handle and view of it. Shape and dtype stay; reading throws.
/// `owners`: the number of handles that the caller holds (of `t` and of views of it). An empty
/// tensor stays as it is.
/// Throws Error when another owner exists, since its data would be lost.
void release_storage(const Tensor& t, int owners = 1);

/// A placeholder for an absent operand: no elements, one shared storage per device.
Tensor empty_operand(DType dtype = DType::f32, Device device = kCpu);

/// "tensor([[1, 2], [3, 4]], f32, cpu)", with the middle of long axes omitted.
std::string to_string(const Tensor& t);
std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace weft
