#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/shape.h"

namespace weft::nn {

/// Which values of a whole parameter a rank holds: along some axes only some ranges, laid one after
/// another. A packed projection of queries, keys and values has three ranges of rows, one of each.
struct Part {
  struct Cut {
    int axis = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  ///< [begin, end), ascending
  };
  Shape whole;            ///< of the parameter on one rank
  std::vector<Cut> cuts;  ///< each axis at most once; none: the whole
};

/// The shape that a rank holds.
Shape shape_of(const Part& part);
/// Takes a stretch of elements that lie one after another both in the whole and in the part, from
/// `whole` and `own` on.
using Run = std::function<void(std::int64_t whole, std::int64_t own, std::int64_t count)>;

/// Calls `run` for every stretch, in the order of the part.
void for_each_run(const Part& part, const Run& run);
/// The same for the part's elements [begin, end): as many steps as there are stretches among these,
/// however large the part is.
void for_each_run(const Part& part, std::int64_t begin, std::int64_t end, const Run& run);

/// The parameters that are held in part, by dotted name.
using Parts = std::map<std::string, Part>;

}  // namespace weft::nn
