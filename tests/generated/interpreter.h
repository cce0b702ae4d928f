#pragma once
#include <functional>
#include <vector>

#include "weft/core/shape.h"
#include "weft/tests/generated/number.h"

// An interpreter of its own for what the random programs do: plain loops in double over row-major
// arrays. It shares nothing with Weft's kernels or tape but the type Shape.
namespace weft::generated {

struct Array {
  Shape shape;
  std::vector<Number> at;  // row-major
  int ndim() const { return shape.size(); }
};
using Arrays = std::vector<const Array*>;
using Row = std::vector<Number>;

/// The smallest relative distance of two different numbers that any op compared since reset():
/// where it is tiny, a last digit decides what happens.
class Closest {
 public:
  static void reset();
  static double get();
  static void see(double a, double b);
};
/// a > b, noted by Closest.
bool greater(const Number& a, const Number& b);
/// Positions of a row by falling value, equal ones by position.
std::vector<int> falling(const Row& row);

Array filled(const Shape& shape, Number value);
Array map(const Array& x, const std::function<Number(const Number&)>& f);
/// NumPy's broadcasting.
Array binary(const Array& a, const Array& b,
             const std::function<Number(const Number&, const Number&)>& f);
/// Every row along `axis` becomes what f makes of it; all of f's rows have one length.
Array along(const Array& x, int axis, const std::function<Row(const Row&)>& f);
/// One number for the elements of all `axes`; keepdim leaves them with length 1.
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
