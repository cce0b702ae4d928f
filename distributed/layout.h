#pragma once
#include <map>
#include <string>

#include "weft/nn/part.h"

namespace weft::distributed {

/// How one parameter lies over the ranks of a mesh.
struct ParameterLayout {
  nn::Part part;  ///< what of the whole this rank holds
  /// An expert's, on the expert grid: gradients are summed over edp instead of dp.
  bool expert = false;
  /// Cut over tp (an expert's: etp) ranks; otherwise every one of them holds the same values.
  bool tp_cut = false;
  /// Held whole by every tp rank, but each rank's gradient comes from its tokens only: they have to
  /// be summed over tp.
  bool tp_partial = false;
  /// Rows of the part from `shared_from` on are held alike by `shared_by` neighbouring tp ranks: a
  /// key head that the query heads of all of them use. Each has the whole gradient of such a row;
  /// a norm counts it once.
  std::int64_t shared_from = 0;
  int shared_by = 1;
};

/// By dotted name; a parameter that is missing is whole, dense and has the whole gradient.
using Layout = std::map<std::string, ParameterLayout>;

}  // namespace weft::distributed
