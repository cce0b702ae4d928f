#include "weft/core/cpu/stream_copy.h"

#include <cstdint>
#include <cstring>

// The sanitizers see memcpy(), but not these stores.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#define WEFT_STREAMS 1
#endif

namespace weft::cpu {

#if WEFT_STREAMS
namespace {

constexpr std::size_t kLine = 64, kPage = 4096, kPages = 4, kAhead = 512;

void copy_line(char* to, const char* from) {
  _mm_prefetch(from + kAhead, _MM_HINT_T0);
  for (std::size_t i = 0; i < kLine; i += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
}

}  // namespace
#endif

void stream_copy(void* to, const void* from, std::size_t bytes) {
#if WEFT_STREAMS
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  if (const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % kLine; bytes > head) {
    std::memcpy(out, in, head);
    out += head, in += head, bytes -= head;
  }
  // Several pages at a time keep more reads under way than one.
  for (; bytes >= kPages * kPage; out += kPages * kPage, in += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += kLine)
      for (std::size_t page = 0; page < kPages; ++page)
        copy_line(out + page * kPage + line, in + page * kPage + line);
    bytes -= kPages * kPage;
  }
  for (; bytes >= kLine; out += kLine, in += kLine, bytes -= kLine) copy_line(out, in);
  _mm_sfence();  // these stores are not ordered with the ones that tell another thread
  to = out, from = in;
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace weft::cpu
