#pragma once
// Runs CUDA kernels on the CPU, block by block. A CUDA thread is a plain function call until it has
// to wait; then it stays suspended on its fiber while others run.
#include <bit>
#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/cuda/emu/fiber.h"
#include "weft/cuda/emu/types.h"

namespace weft::emu {

using Loc = std::source_location;

/// The order of threads (and blocks) where the hardware leaves it open.
enum class Order : std::uint8_t { forward, reverse, random };

struct Options {
  Order order = Order::forward;
  std::uint32_t seed = 1;
};
/// Applies to the next kernels. A test changes it and runs the kernels again.
extern Options options;

/// Statistics of this OS thread.
struct Stats {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0;
};
extern thread_local constinit Stats stats;

/// The values behind threadIdx and its siblings. `current` is the index of the running thread in
/// its block.
struct Here {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  int current;
};
extern thread_local constinit Here here;

class Engine {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr std::size_t kShared = 232448;  // 227 KiB, Hopper's maximum per block
  static constexpr std::size_t kSharedMapping = 2 * kShared + 4096;  // with gaps between variables

  static Engine& get() { return of_this_thread ? *of_this_thread : create(); }

  /// Orders the blocks that follow after all work of this OS thread so far.
  void begin_grid();
  /// Runs body(context) once for every thread of one block. Blocks are unordered until end_grid().
  /// Throws Error when a thread does, on a deadlock, and when threads diverge at a barrier.
  void run_block(void (*body)(void*), void* context, uint3 block, dim3 block_dim,
                 std::size_t dynamic_shared);

  /// Orders all blocks run so far before the next work of this OS thread.
  void end_grid() { acquire(&block_end_); }

  /// Barrier `id` of the 16, for `expected` threads, or the whole block when negative. The whole
  /// block must meet at one source location; fewer threads may come from several.
  void barrier(int id, int expected, const char* what, const Loc& loc);
  /// One rendezvous of the lanes in `mask`: the last lane to arrive runs meet(args, lanes) for all
  /// of them. meet must not wait.
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

  /// cp.async. The copy may complete at any time up to the wait: in Order::forward at the wait, in
  /// Order::reverse at once, in Order::random either. A null `from` writes zeros.
  void copy_later(void* to, const void* from, int bytes);
  void commit_copies();
  void finish_copies(int groups_left);

  char* dynamic_shared() { return shared_; }
  bool is_shared(const void* p) const { return p >= shared_ && p < shared_ + kSharedMapping; }
  /// A static shared variable of the running block, filled with NaN at first use.
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
  // One rendezvous of lanes. Different masks of a warp use different slots.
  struct Slot {
    unsigned mask = 0, needed = 0, arrived = 0, phase = 0;
    const char* what = "";
    Loc loc;
    void* args[32];
    char* syncs = nullptr;  // two, in turn
    void* sync() { return syncs + (phase & 1); }
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
  };

  static thread_local constinit Engine* of_this_thread;

  Engine();
  ~Engine();
  static Engine& create();
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
  unsigned awaited_ = 0;  // bits of the barriers at which threads wait
  FiberPool fibers_;
  Fiber main_;
  Fiber* running_ = &main_;
  char* shared_;
  struct Variable {
    const void* key;
    char* at;
  };
  std::vector<Variable> variables_;
  std::size_t shared_top_ = 0;  // with gaps between variables; all beyond it is poisoned
  std::size_t variable_bytes_ = 0, dynamic_bytes_ = 0;
  int count_ = 0, live_ = 0, warp_count_ = 0, warp_ = 0;
  std::uint32_t random_state_ = 1;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  // The addresses at which threads of a block synchronise: two for each barrier and each slot.
  // ThreadSanitizer forgets what was released at them when they are freed.
  static constexpr int kSyncs = 2 * (16 + kMaxThreads);
  std::unique_ptr<char[]> syncs_ = std::make_unique<char[]>(kSyncs);
  char grid_begin_ = 0, block_end_ = 0;
};

}  // namespace weft::emu
