#pragma once
// Everything that a kernel file needs besides its seam header. Only this file depends on the
// compiler: nvcc for a GPU, or g++ for the emulator (WEFT_CUDA_EMU).
#include <cstdint>
#include <type_traits>
#include <utility>

#include "weft/core/cuda.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/low_precision.h"
#include "weft/cuda/launch.h"

#if WEFT_CUDA_EMU
#include "weft/cuda/emu/device.h"
#else
#include <cuda_runtime.h>
#endif

namespace weft::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

namespace detail {

/// Launches a kernel on this thread's current stream of the current device.
void launch(const void* kernel, dim3 grid, dim3 block, void** args, std::size_t shared);
#if WEFT_CUDA_EMU
/// The same for a kernel packed with its arguments; run(context) executes one thread.
void launch(dim3 grid, dim3 block, std::size_t shared, void (*run)(void*), void* context,
            void (*destroy)(void*));
#endif

}  // namespace detail

/// kernel<<<grid, block, shared, current stream>>>(args...), checked. Does nothing for an empty
/// grid.
template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared,
            std::type_identity_t<P>... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if WEFT_CUDA_EMU
  emu::note_launch(reinterpret_cast<const void*>(kernel));
  const auto call = [=] { kernel(args...); };
  using Call = decltype(call);
  detail::launch(
      grid, block, shared, [](void* context) { (*static_cast<Call*>(context))(); }, new auto(call),
      [](void* context) { delete static_cast<Call*>(context); });
#else
  void* pointers[] = {&args..., nullptr};
  detail::launch(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared);
#endif
}

// Shared memory. WEFT_SHARED(name, float[32][33]) declares a variable of the block;
// dynamic_shared<T>() is the memory requested at launch, which begins behind the variables. Both
// are uninitialised. A larger alignment would leave gaps, and blocks that need all 99 KiB of a card
// could not start.
inline constexpr std::size_t kSharedAlignment = 128;
#if WEFT_CUDA_EMU
#define WEFT_SHARED(name, ...)                                                                     \
  static char name##_key;                                                                          \
  auto& name =                                                                                     \
      *static_cast<std::type_identity_t<__VA_ARGS__>*>(::weft::emu::Engine::get().shared_variable( \
          &name##_key, sizeof(__VA_ARGS__), ::weft::cuda::kSharedAlignment))
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(::weft::emu::Engine::get().dynamic_shared());
}
#else
#define WEFT_SHARED(name, ...) \
  __shared__ __align__(::weft::cuda::kSharedAlignment) std::type_identity_t<__VA_ARGS__> name
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(kSharedAlignment) unsigned char weft_dynamic_shared[];
  return reinterpret_cast<T*>(weft_dynamic_shared);
}
#endif

/// Number of blocks of `size` that cover n.
constexpr std::int64_t blocks_for(std::int64_t n, std::int64_t size) {
  return (n + size - 1) / size;
}
/// A grid of these dimensions.
/// Throws Error (Fault::system) above the limits of the hardware: 2^31 - 1 along x, 65,535 along y
/// and z. So what a user's sizes determine belongs on x.
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  if (x > kMaxGridX || y > kMaxGridYZ || z > kMaxGridYZ) [[unlikely]]
    refuse_grid(x, y, z);
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

/// Pack<T>::kCount neighbouring elements, loaded and stored as one access of 16 bytes.
template <class T, int N = 16 / static_cast<int>(sizeof(T))>
struct alignas(N * sizeof(T)) Pack {
  static constexpr int kCount = N;
  T value[N];
  __device__ T& operator[](int i) { return value[i]; }
  __device__ const T& operator[](int i) const { return value[i]; }
};
template <class T, int N = 16 / static_cast<int>(sizeof(T))>
__device__ inline Pack<T, N> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
/// p: global memory, at a multiple of the pack's size.
template <class T, int N>
__device__ inline void store_pack(T* p, const Pack<T, N>& v) {
#if WEFT_CUDA_EMU
  *reinterpret_cast<Pack<T, N>*>(p) = v;
#else
  // nvcc splits the store of a struct where another branch writes the same place element by
  // element.
  constexpr int kWords = sizeof v / 4;
  if constexpr (kWords == 4 || kWords == 2) {
    std::uint32_t w[kWords];
    memcpy(w, &v, sizeof v);
    const std::size_t to = __cvta_generic_to_global(p);
    if constexpr (kWords == 4)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(w[0]), "r"(w[1]),
                   "r"(w[2]), "r"(w[3])
                   : "memory");
    else
      asm volatile("st.global.v2.b32 [%0], {%1, %2};\n" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    *reinterpret_cast<Pack<T, N>*>(p) = v;
  }
#endif
}
/// Whether the n elements at p (and every following row of that length) can be accessed 16 bytes at
/// a time.
template <class T>
bool packable(const T* p, std::int64_t n) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 &&
         n % (16 / static_cast<std::int64_t>(sizeof(T))) == 0;
}

}  // namespace weft::cuda
