#pragma once
// Runs CUDA kernels on the CPU, block by block. A CUDA thread is a plain function call until it has
// to wait; then it stays behind on its fiber while the others run.
#include <bit>
#include <cstdint>
#include <exception>
#include <source_location>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/cuda/emu/fiber.h"
#include "weft/cuda/emu/types.h"

namespace weft::emu {

using Loc = std::source_location;

/// In which order threads (and blocks) run where the hardware leaves it open.
enum class Order : std::uint8_t { forward, reverse, random };

struct Options {
  Order order = Order::forward;
  std::uint32_t seed = 1;
};
/// For the kernels that run from now on. A test changes it, then runs the kernels once more.
extern Options options;

/// What ran so far on this OS thread.
struct Stats {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0;
};
extern thread_local constinit Stats stats;

/// What threadIdx and its like stand for. `current` is the running thread's number in its block.
struct Here {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  int current;
};
extern thread_local constinit Here here;

class Engine {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr std::size_t kShared = 232448;  // 227 KiB, the most that Hopper gives a block
  static constexpr std::size_t kSharedMapping = 2 * kShared + 4096;  // with gaps between variables

  static Engine& get();

  /// Runs body(context) once for every thread of one block.
  /// Throws Error when a thread does, when threads wait for ever, and when they part at a barrier.
  /// Blocks are not ordered among each other until end_grid().
  void run_block(void (*body)(void*), void* context, uint3 block, dim3 block_dim,
                 std::size_t dynamic_shared);

  /// What the blocks run so far did happened before what this OS thread does next.
  void end_grid() { acquire(&block_end_); }

  /// Barrier `id` of the 16; `expected` threads, or all of the block when negative. All of the
  /// block must meet at one place in the source; fewer may come from several.
  void barrier(int id, int expected, const char* what, const Loc& loc);
  /// One rendezvous of the lanes in `mask`: the last to arrive runs meet(args, lanes) for all of
  /// them. It must not wait.
  template <class Arg, class Meet>
  void collective(unsigned mask, Arg& arg, const char* what, const Loc& loc, Meet&& meet) {
    Slot& slot = join(mask, &arg, what, loc);
    if (slot.arrived != slot.needed) return wait_in(slot);
    acquire(slot.sync());
    meet(reinterpret_cast<Arg**>(slot.args), slot.needed);
    leave(slot);
  }

  /// The same for the 32 lanes of a whole warp.
  template <class Arg, class Meet>
  void whole_warp(Arg& arg, const char* what, const Loc& loc, Meet&& meet) {
    const int me = here.current >> 5;
    if (full_warp(me) != ~0u)
      fail(message("{}: all 32 lanes of a warp must call it, at {}", what, where(loc)));
    collective(~0u, arg, what, loc, meet);
  }

  /// cp.async. It may land at any time up to the wait: in Order::forward as late as that, in
  /// Order::reverse at once, in Order::random either way. From null: zeros.
  void copy_later(void* to, const void* from, int bytes);
  void commit_copies();
  void finish_copies(int groups_left);

  char* dynamic_shared() { return shared_; }
  bool is_shared(const void* p) const { return p >= shared_ && p < shared_ + kSharedMapping; }
  /// A static shared variable of the running block, filled with NaN when first named.
  void* shared_variable(const void* key, std::size_t bytes, std::size_t alignment);

  [[noreturn]] static void fail(const std::string& text);
  static std::string where(const Loc& loc);

 private:
  enum class State : std::uint8_t { ready, barrier, warp, done };
  struct Copy {
    void* to;
    const void* from;
    int bytes, group;
  };
  struct Thread {
    uint3 index;
    Fiber* fiber;
    State state;
    int barrier;
    const char* what;
    Loc loc;
    std::vector<Copy> copies;
    int group;
  };
  // One meeting of lanes. Different masks of a warp meet in different slots.
  struct Slot {
    unsigned mask = 0, needed = 0, arrived = 0, phase = 0;
    const char* what = "";
    Loc loc;
    void* args[32];
    char syncs[2];
    void* sync() { return &syncs[phase & 1]; }
  };
  struct Warp {
    unsigned ready = 0, live = 0;
    int slots = 0;
    Slot slot[32];
  };
  struct Barrier {
    int arrived = 0, expected = 0;
    unsigned phase = 0;
    Loc loc;
    char syncs[2];
  };

  Engine();
  ~Engine();
  static void enter_body();
  void threads_on_this_fiber();
  bool end_thread(int t);
  Slot& join(unsigned mask, void* arg, const char* what, const Loc& loc);
  void wait_in(Slot& slot);
  void leave(Slot& slot);
  void open_barrier(int id);
  int pick();
  int pick_forward();
  int pick_reverse();
  int pick_random();
  std::uint32_t random();
  void wait();
  void go_on(int t);
  void switch_to(Fiber& next);
  void set_up_shared(std::size_t dynamic);
  unsigned full_warp(int w) const;
  std::string stuck() const;
  void abandon();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier barriers_[16];
  FiberPool fibers_;
  Fiber main_;
  Fiber* running_ = &main_;
  char* shared_;
  struct Variable {
    const void* key;
    char* at;
  };
  std::vector<Variable> variables_;
  std::size_t shared_top_ = 0,
              shared_used_ = 0;  // with and without the gaps between variables
  int count_ = 0, live_ = 0, warp_count_ = 0, warp_ = 0;
  std::uint32_t random_state_ = 1;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  char block_end_ = 0;
};

}  // namespace weft::emu
