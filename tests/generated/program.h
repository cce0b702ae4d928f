#pragma once
#include <span>
#include <string>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/tests/generated/interpreter.h"
#include "weft/tests/generated/layouts.h"

namespace weft::generated {

/// A leaf, or one op of a program with its operands.
struct Item {
  int op = -1;  ///< in program_ops(); -1: a leaf
  std::vector<int> in;
  std::vector<std::int64_t> ints;
  std::vector<double> reals;
  // For a leaf.
  Shape shape;
  Layout layout = Layout::contiguous;
  std::vector<double> values, along_s, along_t;
};
using Program = std::vector<Item>;

/// Gives ops their operands.
class Maker {
 public:
  Maker(Rng& generator, Program& program, std::vector<Array>& values)
      : rng(generator), program_(program), values_(values) {}
  const Shape& shape(int item) const { return values_[static_cast<std::size_t>(item)].shape; }
  /// An item with at least that many axes, usually a late one; -1 if there is none.
  int any(int least_axes = 0);
  /// An item of this shape: an existing one or a new leaf.
  int like(const Shape& shape);
  int leaf(const Shape& shape);
  /// A random axis length.
  std::int64_t length();
  int axis(int item) { return static_cast<int>(rng.below(shape(item).size())); }

  Rng& rng;

 private:
  Program& program_;
  std::vector<Array>& values_;
};

struct ProgramOp {
  /// One or more ops of docs/ops.md, then what tells it from other rows; or "Tensor::" and a
  /// member.
  const char* name;
  int order;  ///< how many times it can be differentiated: 1 or 2
  /// Chooses operands and numbers; false if nothing fits.
  bool (*make)(Maker& m, Item& item);
  Tensor (*weft)(const Item& item, const TensorList& in);
  Array (*exact)(const Item& item, const Arrays& in);
};
std::span<const ProgramOp> program_ops();
inline const ProgramOp& op_of(const Item& item) {
  return program_ops()[static_cast<std::size_t>(item.op)];
}

/// The rounding of a dtype.
struct Rounding {
  double eps = 0x1p-53;      ///< of a result
  double compute = 0x1p-53;  ///< of the accumulation of sums
  double margin = 1e-6;      ///< the least distance between numbers that an op compares
};

/// A program whose values are finite, moderate and well-conditioned: one in two has `longest` ops,
/// the others 1 to `longest`, and fewer if no more fit. `values` are the interpreter's.
Program make_program(Rng rng, int longest, const Rounding& rounding, std::vector<Array>& values);
/// The interpreter's value of an item, from the values of the items before it.
Array interpret(const Item& item, const std::vector<Array>& values);
std::vector<Array> interpret(const Program& program);
/// The same, with random rounding.
Array interpret_rounded(const Item& item, const std::vector<Array>& values,
                        const Rounding& rounding, std::uint64_t seed);
/// Random rounding of the derivatives alone.
void round_derivatives(Array& x, const Rounding& rounding, std::uint64_t seed);
/// The items that `last` depends on, renumbered, with `last` at the end.
Program only_for(const Program& program, int last);
std::string to_string(const Program& program, const std::vector<Array>& values);

}  // namespace weft::generated
