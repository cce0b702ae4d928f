#include "weft/cuda/emu/engine.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::test {

bool emulated() { return true; }

void for_each_order(const std::function<void()>& run) {
#if WEFT_EMU_TSAN
  run();  // what is a race is one in every order, and each takes long
#else
  using emu::Order;
  for (const emu::Options& options :
       {emu::Options{Order::forward, 1}, emu::Options{Order::reverse, 1},
        emu::Options{Order::random, 1}, emu::Options{Order::random, 2},
        emu::Options{Order::random, 3}}) {
    emu::options = options;
    run();
  }
  emu::options = {};
#endif
}

}  // namespace weft::test
