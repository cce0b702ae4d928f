#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/tests/generated/layouts.h"
#include "weft/tests/generated/ops_table.h"

namespace weft::generated {

/// Special values in an operand among ordinary numbers.
enum class Special : std::uint8_t { none, nan, infinity, masked_row, zeros };
inline constexpr int kSpecials = 5;

/// The length of each axis letter.
using Sizes = std::map<char, std::int64_t>;
Sizes odd_sizes();

/// An operand as described by the table, with values.
struct Operand {
  Shape shape;
  char kind = 0;  ///< the letter after the colon; 0: the dtype of the run
  std::vector<double> values;
  DType dtype(DType run) const;
};

/// The axis letters of a line.
std::string letters(const OpLine& line);
/// New values for these sizes, rounded to the dtype. False if there are none: indices into an axis
/// of length 0.
bool make_operands(const OpLine& line, const Sizes& sizes, DType dtype, Rng rng,
                   std::vector<Operand>& operands);
/// Puts the special value into operand i; false if the operand has no place for it.
bool plant(Special special, Operand& operand);

/// The outcome: results and then the gradients of each of them, or an Error.
struct Outcome {
  struct Part {
    std::string what;
    DType dtype = DType::f64;
    Shape shape;
    std::vector<double> values;
  };
  std::vector<Part> parts;
  std::string error;
};

/// The cotangent of a result: values that depend only on its shape, repeated as for one layout and
/// stored in the same layout or contiguous.
struct Cotangent {
  Layout values = Layout::contiguous, memory = Layout::contiguous;
};

/// Runs a line forward and, with `gradients`, backward.
Outcome run(const OpLine& line, const std::vector<Operand>& operands,
            const std::vector<Layout>& layouts, const Cotangent& cotangent, DType dtype,
            Device device, bool gradients);

/// "" when got equals want within the bound of this dtype, relative to the largest number of each
/// tensor; integers must be equal.
std::string difference(const Outcome& got, const Outcome& want, const OpLine& line, DType dtype);
/// "" when both have the same bits.
std::string bit_difference(const Outcome& got, const Outcome& want);

}  // namespace weft::generated
