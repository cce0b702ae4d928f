#pragma once
// Processes the tensors of a whole model in one launch: a table of slots in device memory, one
// block per chunk of a tensor, and accesses whose dtype is known at run time only.
#include <vector>

#include "weft/core/cuda_graph.h"
#include "weft/core/kernels/optimizer.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/staging.h"
#include "weft/cuda/math.h"

namespace weft::cuda {

inline constexpr int kSlotThreads = 256;

/// The slot table at the front of `scratch`, and the memory after it.
template <class Slot>
struct SlotTable {
  const PlacedSlot<Slot>* slots;
  std::int64_t count, chunks;
  void* rest;
};

/// Copies the slots to the device; during a capture, only once. `packs(slot)`: whether its elements
/// can be accessed four at a time.
template <class Slot, class F>
SlotTable<Slot> upload(const Tensor& scratch, const Slot* slots, std::int64_t count, F packs) {
  static thread_local std::vector<PlacedSlot<Slot>> table;  // reused, so that a step allocates
                                                            // nothing
  table.clear();
  std::int64_t chunks = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    table.push_back({slots[i], chunks, packs(slots[i])});
    chunks += optimizer_chunks(slots + i, 1, true);
  }
  const std::int64_t bytes = slot_table_bytes<Slot>(count, true);
  char* const front = static_cast<char*>(scratch.raw());
  const void* slots_there = front;
  if (Graph* graph = Graph::capturing())
    slots_there = graph->constant(table.data(), bytes);
  else
    detail::upload(front, table.data(), bytes, Stream::current(scratch.device()));
  return {static_cast<const PlacedSlot<Slot>*>(slots_there), count, chunks, front + bytes};
}

/// Whether elements can be accessed four at a time. True for a null pointer.
inline bool four_at_once(const void* p, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(p) % (4 * size_of(dtype)) == 0;
}

/// The slot of chunk `chunk`: the last one that begins at or before it.
template <class Slot>
__device__ inline const PlacedSlot<Slot>& slot_of(const PlacedSlot<Slot>* slots, std::int64_t count,
                                                  std::int64_t chunk) {
  std::int64_t low = 0, high = count - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (slots[middle].first_chunk <= chunk)
      low = middle;
    else
      high = middle - 1;
  }
  return slots[low];
}

/// Up to four adjacent elements; the end of a tensor may have fewer.
struct Four {
  std::int64_t at;
  int valid;
  bool whole;  // one access for all four

  /// Those from i on of a chunk that ends at `end`.
  static __device__ Four of(std::int64_t i, std::int64_t end, bool packs) {
    const int valid = end - i < 4 ? static_cast<int>(end - i) : 4;
    return {i, valid, packs && valid == 4};
  }
};

/// The elements of a chunk of its slot.
struct Span {
  std::int64_t begin, end;
  template <class Slot>
  __device__ Span(const PlacedSlot<Slot>& s, std::int64_t chunk)
      : begin((chunk - s.first_chunk) * kOptimizerGpuChunk),
        end(begin + kOptimizerGpuChunk < s.slot.n ? begin + kOptimizerGpuChunk : s.slot.n) {}
};

/// Calls f(four) for the elements of a chunk, which the block shares.
template <class Slot, class F>
__device__ inline void each_four(const PlacedSlot<Slot>& s, std::int64_t chunk, F f) {
  const Span span(s, chunk);
  for (std::int64_t i = span.begin + 4 * threadIdx.x; i < span.end; i += 4 * kSlotThreads) {
    f(Four::of(i, span.end, s.packs));
  }
}

/// x as its own type, or as a wider one.
template <class C, class T>
__device__ inline C stored_as(T x) {
  if constexpr (std::is_same_v<C, T>)
    return x;
  else
    return static_cast<C>(widen(x));
}

template <class C, class T>
__device__ inline Pack<C, 4> read_as(const void* base, const Four& f) {
  const T* p = static_cast<const T*>(base) + f.at;
  Pack<C, 4> out;
  if (f.whole) {
    const auto x = load_pack<T, 4>(p);
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = stored_as<C>(x[j]);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = j < f.valid ? stored_as<C>(p[j]) : C(0);
  }
  return out;
}
template <class T, class C>
__device__ inline void write_as(void* base, const Four& f, const Pack<C, 4>& v) {
  T* p = static_cast<T*>(base) + f.at;
  if (f.whole) {
    Pack<T, 4> out;
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = narrow<T>(v[j]);
    store_pack(p, out);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < f.valid) p[j] = narrow<T>(v[j]);
  }
}

/// Stored numbers as C: f64 for double; f32, bf16 and f16 times `scale` for float.
template <class C>
__device__ inline Pack<C, 4> read_four(const void* base, DType dtype, const Four& f, C scale = 1) {
  if constexpr (std::is_same_v<C, double>) {
    return read_as<double, double>(base, f);
  } else {
    if (dtype == DType::f32) return read_as<float, float>(base, f);
    if (dtype == DType::bf16) return read_as<float, bf16>(base, f);
    auto x = read_as<float, f16>(base, f);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] *= scale;
    return x;
  }
}
template <class C>
__device__ inline void write_four(void* base, DType dtype, const Four& f, const Pack<C, 4>& v,
                                  C scale = 1, bool keeps_above_zero = false) {
  if constexpr (std::is_same_v<C, double>) {
    write_as<double>(base, f, v);
  } else {
    if (dtype == DType::f32) return write_as<float>(base, f, v);
    if (dtype == DType::bf16) return write_as<bf16>(base, f, v);
    Pack<C, 4> stored;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      stored[j] = scale == 0 ? 0 : v[j] / scale;
      if (keeps_above_zero && v[j] > 0 && stored[j] < C(0x1p-24)) stored[j] = C(0x1p-24);
    }
    write_as<f16>(base, f, stored);
  }
}

/// The numbers that a slot's step updates. `split`: the slot has remainders; a constant where
/// registers are scarce.
template <class C>
__device__ inline Pack<C, 4> read_param(const ParamSlot& s, const Four& f, bool split) {
  if constexpr (std::is_same_v<C, float>)
    if (split) {
      const auto upper = read_as<bf16, bf16>(s.param, f);
      const auto remainder = read_as<std::int16_t, std::int16_t>(s.remainder, f);
      Pack<C, 4> out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] = merge_float(upper[j], remainder[j]);
      return out;
    }
  return read_four<C>(s.param, s.param_dtype, f);
}
template <class C>
__device__ inline void write_param(const ParamSlot& s, const Four& f, const Pack<C, 4>& p,
                                   bool split) {
  if constexpr (std::is_same_v<C, float>)
    if (split) {
      Pack<bf16, 4> upper;
      Pack<std::int16_t, 4> remainder;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const SplitFloat halves = split_float(p[j]);
        upper[j] = halves.upper;
        remainder[j] = halves.remainder;
      }
      write_as<bf16>(s.param, f, upper);
      return write_as<std::int16_t>(s.remainder, f, remainder);
    }
  write_four(s.param, s.param_dtype, f, p);
  if (s.half_copy)
    s.copy_dtype == DType::bf16 ? write_as<bf16>(s.half_copy, f, p)
                                : write_as<f16>(s.half_copy, f, p);
}

}  // namespace weft::cuda
