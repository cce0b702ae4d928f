#include "weft/cuda/emu/engine.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::test {

bool emulated() { return true; }

void for_each_order(const std::function<void()>& run) {
#if WEFT_EMU_TSAN
  run();  // what is a race is one in every order, and each takes long
#else
  using emu::Order;
#ifdef __SANITIZE_ADDRESS__
  // What an access out of bounds depends on is rarely the order; the release build runs all five.
  const emu::Options orders[] = {{Order::forward, 1}, {Order::random, 1}};
#else
  const emu::Options orders[] = {{Order::forward, 1},
                                 {Order::reverse, 1},
                                 {Order::random, 1},
                                 {Order::random, 2},
                                 {Order::random, 3}};
#endif
  for (const emu::Options& options : orders) {
    emu::options = options;
    run();
  }
  emu::options = {};
#endif
}

}  // namespace weft::test
