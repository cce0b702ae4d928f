#pragma once
#include <bitset>
#include <cstddef>
#include <span>

#include "weft/core/default_threads.h"

namespace weft::distributed {

/// Processors of a machine, by their number.
using Processors = std::bitset<kMaxProcessors>;

/// How many processors of its machine process `own` may call its own, at least 1. `allowed`: where
/// each process of a job on that machine may run; those that may use a processor share it alike.
int processor_share(std::span<const Processors> allowed, std::size_t own);

}  // namespace weft::distributed
