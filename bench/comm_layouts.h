#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/bench/comm_trace.h"
#include "weft/distributed/comm_cost.h"

namespace weft::bench {

/// Bytes that the rank sends in a step, by the axis of the mesh along which they go: "tp", "ep",
/// "cp", "dp", "pp", and "world" for what concerns all ranks.
std::map<std::string, std::int64_t> bytes_by_axis(
    const std::vector<distributed::FlightEntry>& step);

/// Prints a table of two large models in several layouts on 8 to 4096 ranks: memory of a rank,
/// bytes by axis, and the time that communication is exposed, with one lane and with `lanes`. Each
/// rank has one sequence in a step. `flags` of train_gpt are added to those of each row. `json`: a
/// file for the numbers; empty: none.
void print_layouts(const distributed::Cluster& cluster, double tflops, int lanes,
                   const std::vector<std::string>& flags, const std::string& json);

}  // namespace weft::bench
