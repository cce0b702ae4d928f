#include "weft/cuda/emu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the emulator's context switch is written for x86-64 and aarch64"
#endif

// Saves the callee-saved registers, then the stack pointer to *save, and restores the registers at
// `load`. Not instrumented: a sanitizer must not see half a switch.
extern "C" void weft_emu_switch(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl weft_emu_switch
.hidden weft_emu_switch
.type weft_emu_switch,@function
weft_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size weft_emu_switch, .-weft_emu_switch
)");
#else
asm(R"(
.text
.p2align 4
.globl weft_emu_switch
.hidden weft_emu_switch
.type weft_emu_switch,@function
weft_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size weft_emu_switch, .-weft_emu_switch
)");
#endif

namespace weft::emu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStack = WEFT_EMU_ASAN ? 256 << 10 : 64 << 10;

}  // namespace

Fiber::Fiber() = default;

Fiber::Fiber(void (*entry)(), unsigned number) : entry_(entry), stagger_(number % 61 * 128) {
  void* p = mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(p);
  mprotect(mapping_, kPage, PROT_NONE);  // a stack overflow faults at once
  low_ = mapping_ + kPage;
  size_ = kStack;
  reset();
}

Fiber::~Fiber() {
#if WEFT_EMU_TSAN
  if (tsan_ && mapping_) __tsan_destroy_fiber(tsan_);
#endif
  if (mapping_) munmap(mapping_, kPage + kStack);
}

void Fiber::reset() {
#if WEFT_EMU_TSAN
  // A new fiber and stack: the previous CUDA thread on it must not impose an order.
  if (tsan_) __tsan_destroy_fiber(tsan_);
  mmap(mapping_ + kPage, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
       -1, 0);
  tsan_ = __tsan_create_fiber(0);
#endif
  unpoison(mapping_ + kPage, kStack);
  auto** top = reinterpret_cast<void**>(mapping_ + kPage + kStack - stagger_ - 64);
#if defined(__x86_64__)
  // The stack pointer must be 16 n + 8 on entry to a function.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry_);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(entry_);  // x30, the return address of ret
#endif
  stack_pointer_ = top;
  asan_stack_ = nullptr;
}

void Fiber::refresh_main() {
#if WEFT_EMU_ASAN
  if (!low_) {
    pthread_attr_t attributes;
    void* low = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size_);
    pthread_attr_destroy(&attributes);
    low_ = low;
  }
#endif
#if WEFT_EMU_TSAN
  tsan_ = __tsan_get_current_fiber();
#endif
}

void Fiber::enter(Fiber& from) {
#if WEFT_EMU_ASAN
  __sanitizer_start_switch_fiber(&from.asan_stack_, low_, size_);
#endif
#if WEFT_EMU_TSAN
  __tsan_switch_to_fiber(tsan_, __tsan_switch_to_fiber_no_sync);
#endif
  weft_emu_switch(&from.stack_pointer_, stack_pointer_);
#if WEFT_EMU_ASAN
  __sanitizer_finish_switch_fiber(from.asan_stack_, nullptr, nullptr);
#endif
}

void Fiber::arrived() {
#if WEFT_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

Fiber* FiberPool::take() {
  if (free_.empty() && all_.size() < most_) {
    all_.push_back(std::make_unique<Fiber>(entry_, static_cast<unsigned>(all_.size())));
    return all_.back().get();
  }
  const bool restart = free_.empty();
  std::vector<Fiber*>& from = restart ? used_ : free_;
  Fiber* f = from.back();
  from.pop_back();
  if (restart) f->reset();
  return f;
}

void FiberPool::begin_grid() {
  free_.insert(free_.end(), used_.begin(), used_.end());
  used_.clear();
}

void FiberPool::reset_all() {
  free_.clear();
  used_.clear();
  for (const std::unique_ptr<Fiber>& f : all_) {
    f->reset();
    free_.push_back(f.get());
  }
}

}  // namespace weft::emu
