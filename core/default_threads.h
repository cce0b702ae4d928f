#pragma once

namespace weft {

/// num_threads() of a process that shares its processors with others: n, where neither
/// OMP_NUM_THREADS nor set_num_threads() says anything.
void set_default_threads(int n);

}  // namespace weft
