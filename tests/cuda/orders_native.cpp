#include "weft/tests/cuda/gpu.h"

namespace weft::test {

bool emulated() { return false; }

void for_each_order(const std::function<void()>& run) { run(); }

}  // namespace weft::test
