#pragma once
#include <functional>
#include <vector>

#include "weft/core/shape.h"
#include "weft/tests/generated/number.h"

// An independent interpreter for the random programs: plain loops in double over row-major arrays.
// It shares nothing with Weft's kernels or tape except the type Shape.
namespace weft::generated {

struct Array {
  Shape shape;
  std::vector<Number> at;  // row-major
  int ndim() const { return shape.size(); }
};
using Arrays = std::vector<const Array*>;
using Row = std::vector<Number>;

/// The smallest relative distance of two numbers that any op compared since reset(). If it is tiny,
/// rounding decides the result; numbers that no dtype rounds do not count.
class Closest {
 public:
  static void reset();
  static double get();
  static void see(const Number& a, const Number& b);
};
/// a > b, recorded by Closest.
bool greater(const Number& a, const Number& b);
/// Positions of a row in descending order, equal values by position.
std::vector<int> falling(const Row& row);

Array filled(const Shape& shape, Number value);
Array map(const Array& x, const std::function<Number(const Number&)>& f);
/// NumPy's broadcasting.
Array binary(const Array& a, const Array& b,
             const std::function<Number(const Number&, const Number&)>& f);
/// Applies f to every row along `axis`; all of f's results have the same length.
Array along(const Array& x, int axis, const std::function<Row(const Row&)>& f);
/// Reduces all `axes` to one number; keepdim keeps them with length 1.
Array reduce_axes(const Array& x, std::vector<int> axes, bool keepdim,
                  const std::function<Number(const Row&)>& f);
/// y[place] = x[source(place)], by row-major coordinates.
using Place = std::vector<std::int64_t>;
Array rearranged(const Array& x, const Shape& shape, const std::function<Place(const Place&)>& f);
const Number& element(const Array& x, const Place& place);
/// NumPy's matrix product for two and more axes.
Array matmul(const Array& a, const Array& b);
Array transposed(const Array& x, int a, int b);
Array reshaped(const Array& x, const Shape& shape);
Number total(const Row& row);
Number highest(const Row& row);
Row softmax(const Row& row);

}  // namespace weft::generated
