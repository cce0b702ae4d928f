#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/shape.h"

namespace weft::nn {

/// The part of a parameter that a rank holds: along some axes only some ranges, concatenated. For a
/// packed projection of q, k and v these are three ranges of rows, one of each.
struct ShardSpec {
  struct Cut {
    int axis = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  ///< [begin, end), ascending
    bool operator==(const Cut&) const = default;
  };
  Shape whole;            ///< shape of the unsharded parameter
  std::vector<Cut> cuts;  ///< each axis at most once; empty: the whole parameter
  bool operator==(const ShardSpec&) const = default;
};

/// The shape of the part.
Shape shape_of(const ShardSpec& part);
/// Receives a run of `count` elements that are contiguous in the whole and in the part, starting at
/// element `whole` and element `own`.
using Run = std::function<void(std::int64_t whole, std::int64_t own, std::int64_t count)>;

/// Calls `run` for every run, in the order of the part.
void for_each_run(const ShardSpec& part, const Run& run);
/// The same for elements [begin, end) of the part, in one step per run in that range.
void for_each_run(const ShardSpec& part, std::int64_t begin, std::int64_t end, const Run& run);

/// The sharded parameters, by dotted name.
using ShardSpecs = std::map<std::string, ShardSpec>;

}  // namespace weft::nn
