#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>

#include "weft/core/string_fwd.h"

namespace weft {

inline constexpr int kMaxDims = 8;

/// Throws Error for more axes than kMaxDims.
[[noreturn]] void throw_too_many_dims(std::int64_t n);

/// A short list of axis lengths (or strides), stored inline without heap allocation.
class Shape {
 public:
  Shape() = default;
  Shape(const Shape& o) { copy(o); }
  Shape& operator=(const Shape& o) {
    copy(o);
    return *this;
  }
  Shape(std::initializer_list<std::int64_t> dims) : Shape(dims.begin(), dims.end()) {}
  template <class It>
  Shape(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  /// n axes of length `value`.
  static Shape filled(int n, std::int64_t value) {
    Shape s;
    for (int i = 0; i < n; ++i) s.push_back(value);
    return s;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return dims_[i]; }
  std::int64_t operator[](int i) const { return dims_[i]; }
  std::int64_t* begin() { return dims_.data(); }
  std::int64_t* end() { return dims_.data() + size_; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + size_; }
  std::int64_t back() const { return dims_[size_ - 1]; }

  void push_back(std::int64_t d) {
    if (size_ == kMaxDims) [[unlikely]]
      throw_too_many_dims(size_ + 1);
    dims_[size_++] = d;
  }
  void pop_back() { --size_; }
  void insert(int at, std::int64_t d) {
    push_back(d);
    for (int i = size_ - 1; i > at; --i) dims_[i] = dims_[i - 1];
    dims_[at] = d;
  }
  void erase(int at) {
    for (int i = at; i + 1 < size_; ++i) dims_[i] = dims_[i + 1];
    --size_;
  }

  /// Product of all axes; 1 for a scalar.
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < size_; ++i) n *= dims_[i];
    return n;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a.dims_[i] != b.dims_[i]) return false;
    return true;
  }

 private:
  // Copies one axis at a time: a wide load of lengths that were just stored one by one would stall
  // until the stores reach the cache. The two exits of the loop keep the compiler from turning it
  // into memmove.
  void copy(const Shape& o) {
    const int n = o.size_;
    for (int i = 0; i < kMaxDims; ++i) {
      if (i == n) break;
      dims_[i] = o.dims_[i];
    }
    size_ = o.size_;
  }

  std::array<std::int64_t, kMaxDims> dims_;
  std::int8_t size_ = 0;
};

/// "[2, 4]".
std::string to_string(const Shape& s);
std::ostream& operator<<(std::ostream& out, const Shape& s);

/// The number of elements.
/// Throws Error prefixed by `op` on a negative axis, and when the product of the axes other than 0
/// is 2^56 or more, so that neither strides nor bytes overflow.
std::int64_t checked_numel(const char* op, const Shape& shape);

/// Strides (in elements) of a row-contiguous tensor of this shape.
inline Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  std::int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

/// The shape two operands broadcast to (NumPy's rule, aligned at the last axis).
/// Throws Error naming both shapes, prefixed by `op`.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

/// Maps a possibly negative axis into [0, ndim).
/// Throws Error "op: dim must be in [-n, n), got d".
int normalize_dim(const char* op, std::int64_t dim, int ndim);

}  // namespace weft
