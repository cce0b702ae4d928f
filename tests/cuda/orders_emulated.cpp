#include <span>

#include "weft/cuda/emu/engine.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::test {
namespace {

using emu::Order;
constexpr emu::Options kOrders[] = {{Order::forward, 1},
                                    {Order::random, 1},
                                    {Order::reverse, 1},
                                    {Order::random, 2},
                                    {Order::random, 3}};
// One order suffices under a sanitizer: a race is a race in every order, and a wrong address rarely
// depends on the order. The emulator's own tests cover the orders themselves.
#ifdef WEFT_EMU_EVERY_ORDER
constexpr std::size_t kOrdersRun = std::size(kOrders);
#else
constexpr std::size_t kOrdersRun = WEFT_EMU_TSAN || WEFT_EMU_ASAN ? 1 : std::size(kOrders);
#endif

}  // namespace

bool emulated() { return true; }

void for_each_order(const std::function<void()>& run) {
  for (const emu::Options& options : std::span(kOrders).first(kOrdersRun)) {
    emu::options = options;
    run();
  }
  emu::options = {};
}

}  // namespace weft::test
