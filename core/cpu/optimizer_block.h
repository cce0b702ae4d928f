#pragma once
// What the optimizers' CPU kernels share: chunks of many tensors, and stored numbers as f32.
#include <algorithm>
#include <cstring>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/optimizer.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

/// A part of one slot's tensor: elements [begin, begin + n), chunk number `index` over all slots.
template <class Slot>
struct Chunk {
  const Slot& slot;
  std::int64_t index, begin, n;
};

/// Calls f(chunk) for every chunk of every slot, on several threads.
template <class Slot, class F>
void each_chunk(const Slot* slots, std::int64_t count, F f) {
  const std::int64_t chunks = optimizer_chunks(slots, count);
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < count; ++i) elements += slots[i].n;
  if (chunks == 0) return;
  parallel_for(chunks, elements / chunks + 1, [&](std::int64_t begin, std::int64_t end) {
    const Slot* slot = slots;
    std::int64_t first = 0;  // chunk number of this slot's first chunk
    for (std::int64_t i = begin; i < end; ++i) {
      while (i >= first + optimizer_chunks(slot, 1)) first += optimizer_chunks(slot++, 1);
      const std::int64_t at = (i - first) * kOptimizerChunk;
      f(Chunk<Slot>{*slot, i, at, std::min(kOptimizerChunk, slot->n - at)});
    }
  });
}

template <class T>
T* at(void* base, std::int64_t offset) {
  return base ? static_cast<T*>(base) + offset : nullptr;
}
template <class T>
const T* at(const void* base, std::int64_t offset) {
  return static_cast<const T*>(base) + offset;
}

/// Elements converted at a time; four such blocks stay in the L1 cache.
inline constexpr std::int64_t kOptimizerBlock = 1024;
static_assert(kOptimizerBlock % kScaleBlock == 0 && kOptimizerChunk % kOptimizerBlock == 0);

/// Whether stochastic rounding applies to numbers of this dtype.
inline bool rounds(DType dtype) { return dtype == DType::bf16 || dtype == DType::e4m3; }

/// The random bits of a block's elements.
class RandomWords {
 public:
  /// Elements [offset, offset + n) of the slot.
  const std::uint32_t* draw(const ParamSlot& s, std::uint64_t seed, std::uint64_t step, Drawn what,
                            std::int64_t offset, std::int64_t n) {
    const RandomKey key{seed, rounding_stream(s.stream, step, what)};
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t i = s.first + offset + done;
      const std::int64_t count = std::min(run_length(s.place, i), n - done);
      const auto whole = static_cast<std::uint64_t>(whole_index(s.place, i));
      const std::int64_t before = static_cast<std::int64_t>(whole % 4);
      const std::int64_t blocks = (before + count + 3) / 4;
      simd().random.words(key, whole / 4, (blocks + 15) / 16 * 16, drawn_);
      std::memcpy(words_ + done, drawn_ + before, static_cast<std::size_t>(count) * sizeof *words_);
      done += count;
    }
    return words_;
  }

 private:
  std::uint32_t words_[kOptimizerBlock] = {}, drawn_[kOptimizerBlock + 64];
};

/// A tensor of numbers in any dtype of a parameter, a gradient or a state.
struct StoredState {
  void* data;
  DType dtype;
  void* exponents = nullptr;  ///< e4m3
  float scale = 1;            ///< f16
  bool keeps_above_zero = false;
};

/// An f32 view of a range of stored numbers: the memory itself, or a converted copy.
class Block {
 public:
  float* read(const StoredState& s, std::int64_t offset, std::int64_t n) {
    const OptimizerKernels& k = simd().optimizer;
    switch (s.dtype) {
      case DType::f32:
        return at<float>(s.data, offset);
      case DType::bf16:
        simd().bf16_.widen(at<bf16>(s.data, offset), buffer_, n);
        break;
      case DType::e4m3:
        k.widen_blocks(at<e4m3>(s.data, offset),
                       at<std::uint8_t>(s.exponents, offset / kScaleBlock), buffer_, n);
        break;
      default:
        k.widen_scaled(at<f16>(s.data, offset), s.scale, buffer_, n);
    }
    return buffer_;
  }
  void write(const StoredState& s, std::int64_t offset, std::int64_t n,
             const RandomHalves& random) const {
    const OptimizerKernels& k = simd().optimizer;
    if (s.dtype == DType::bf16 && random.words)
      k.narrow_random(buffer_, random, at<bf16>(s.data, offset), n);
    else if (s.dtype == DType::bf16)
      simd().bf16_.narrow(buffer_, at<bf16>(s.data, offset), n);
    else if (s.dtype == DType::e4m3)
      k.narrow_blocks(buffer_, random, s.keeps_above_zero, at<e4m3>(s.data, offset),
                      at<std::uint8_t>(s.exponents, offset / kScaleBlock), n);
    else if (s.dtype == DType::f16)
      k.narrow_scaled(buffer_, s.scale, s.keeps_above_zero, at<f16>(s.data, offset), n);
  }
  /// The numbers that the step of a slot updates.
  float* read_param(const ParamSlot& s, std::int64_t offset, std::int64_t n) {
    if (!s.remainder) return read({s.param, s.param_dtype}, offset, n);
    simd().optimizer.merge(at<bf16>(s.param, offset), at<std::int16_t>(s.remainder, offset),
                           buffer_, n);
    return buffer_;
  }
  /// For a pass that must not change memory.
  float* copy(const float* x, std::int64_t n) {
    if (x != buffer_) std::copy(x, x + n, buffer_);
    return buffer_;
  }

 private:
  alignas(64) float buffer_[kOptimizerBlock];
};

/// Writes the copy of a slot that has one.
inline void write_copy(const ParamSlot& s, const float* p, std::int64_t offset, std::int64_t n) {
  if (s.copy_dtype == DType::bf16)
    simd().bf16_.narrow(p, at<bf16>(s.half_copy, offset), n);
  else
    simd().f16_.narrow(p, at<f16>(s.half_copy, offset), n);
}

/// `p` is the result of Block::read_param().
inline void write_param(const ParamSlot& s, const float* p, std::int64_t offset, std::int64_t n,
                        std::uint64_t seed, std::uint64_t step, RandomWords& words) {
  const OptimizerKernels& k = simd().optimizer;
  if (s.remainder)
    k.split(p, at<bf16>(s.param, offset), at<std::int16_t>(s.remainder, offset), n);
  else if (s.param_dtype == DType::bf16 && s.stochastic)
    k.narrow_random(p, {words.draw(s, seed, step, Drawn::weight, offset, n), 0},
                    at<bf16>(s.param, offset), n);
  else if (s.param_dtype == DType::bf16)
    simd().bf16_.narrow(p, at<bf16>(s.param, offset), n);
  else if (s.param_dtype == DType::f16)
    simd().f16_.narrow(p, at<f16>(s.param, offset), n);
  if (s.half_copy) write_copy(s, p, offset, n);
}

}  // namespace weft::cpu
