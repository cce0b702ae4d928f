#pragma once
#include <bitset>
#include <cstddef>
#include <span>

#include "weft/core/default_threads.h"

namespace weft::distributed {

/// The processors of a machine, by number.
using Processors = std::bitset<kMaxProcessors>;

/// The processors that this process may run on.
Processors own_processors();

/// Number of processors that process `own` may use, at least 1. `allowed` holds the processors that
/// each process of the job may run on; processes that share a processor divide it equally.
int processor_share(std::span<const Processors> allowed, std::size_t own);

}  // namespace weft::distributed
