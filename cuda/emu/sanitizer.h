#pragma once
// What the engine must tell AddressSanitizer and ThreadSanitizer. Without them, all of these are
// no-ops. For files that are not instrumented themselves, CMakeLists.txt says which of them is
// there.

#if !defined(WEFT_EMU_ASAN)
#if defined(__SANITIZE_ADDRESS__)
#define WEFT_EMU_ASAN 1
#else
#define WEFT_EMU_ASAN 0
#endif
#endif
#if WEFT_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(WEFT_EMU_TSAN)
#if defined(__SANITIZE_THREAD__)
#define WEFT_EMU_TSAN 1
#else
#define WEFT_EMU_TSAN 0
#endif
#endif
#if WEFT_EMU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace weft::emu {

/// The engine's own accesses inside the scope do not count as races of the kernel.
class Quiet {
#if WEFT_EMU_TSAN
 public:
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
 public:
  Quiet() {}
  ~Quiet() {}
#endif
  Quiet(const Quiet&) = delete;
};

/// Orders everything before release() in one CUDA thread before everything after acquire() of the
/// same address in another.
inline void release(void* sync) {
#if WEFT_EMU_TSAN
  __tsan_release(sync);
#endif
  (void)sync;
}
inline void acquire(void* sync) {
#if WEFT_EMU_TSAN
  __tsan_acquire(sync);
#endif
  (void)sync;
}

inline void poison(void* p, std::size_t bytes) {
#if WEFT_EMU_ASAN
  __asan_poison_memory_region(p, bytes);
#endif
  (void)p, (void)bytes;
}
inline void unpoison(void* p, std::size_t bytes) {
#if WEFT_EMU_ASAN
  __asan_unpoison_memory_region(p, bytes);
#endif
  (void)p, (void)bytes;
}

}  // namespace weft::emu
