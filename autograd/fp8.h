#pragma once
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "weft/core/kernels/quantize.h"
#include "weft/core/tensor.h"

/// Training with products of 8-bit floating-point numbers. Tensors stay bf16 or f32; the operands
/// of a product are rounded to FP8, with scales, right before it. docs/precision.md is the guide.
namespace weft::fp8 {

/// Where scales come from. current: the largest magnitude of the tensor that is rounded. delayed:
/// the largest of the steps before. block: of 128 x 128 blocks of a weight, and of 128 neighbours
/// of everything else, along the axis that the product sums.
enum class Scaling : std::uint8_t { current, delayed, block };

/// What backward multiplies. none: FP8 operands. high_precision: the operands before rounding.
/// dequantized: the forward pass's rounded operands, and unrounded gradients.
enum class BackwardOverride : std::uint8_t { none, high_precision, dequantized };

/// How operands are rounded: x and weights to e4m3, gradients to e5m2.
/// Source  Micikevicius et al. 2022, arXiv:2209.05433; TransformerEngine, common/recipe
struct Recipe {
  Scaling scaling = Scaling::current;
  bool power_of_two = false;    ///< scales are rounded down to powers of two; block: always
  double epsilon = 0;           ///< a smaller largest magnitude counts as this
  std::int64_t history = 1024;  ///< delayed: steps whose largest magnitudes count
  std::int64_t margin = 0;      ///< delayed: scales are divided by 2^margin
  BackwardOverride backward = BackwardOverride::none;

  /// Throws Error that names the first violated rule.
  void validate() const;
  /// Whether ranks send each other codes in place of numbers: a tensor has one scale, and backward
  /// multiplies the codes. Blocks are rounded along both axes, which together takes as many bytes
  /// as bf16.
  bool travels() const { return scaling != Scaling::block && backward == BackwardOverride::none; }
  Fp8Scaling numbers() const {
    return {static_cast<float>(epsilon), power_of_two || scaling == Scaling::block,
            scaling == Scaling::delayed ? static_cast<std::int32_t>(margin) : 0};
  }
};

inline constexpr DType kForward = DType::e4m3, kGradient = DType::e5m2;
/// Of the widths and row counts of operands: the hardware loads 16 bytes at a time.
inline constexpr std::int64_t kMultiple = 16;

/// While one exists, this thread's layers multiply in FP8 by its recipe; with a null recipe they do
/// not. It covers forward and backward of a step. A recomputed region runs again under the recipe
/// of its first pass.
///
///   const fp8::Autocast scope(recipe);
///   Tape tape;
///   loss(model, batch).backward();
class Autocast {
 public:
  explicit Autocast(const std::optional<Recipe>& recipe);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  /// The recipe of the innermost scope, or null.
  static const Recipe* current() {
    return innermost_ && innermost_->recipe_ ? &*innermost_->recipe_ : nullptr;
  }
  /// The same, as a value that a later scope can restore.
  static std::optional<Recipe> state() {
    return innermost_ ? innermost_->recipe_ : std::optional<Recipe>();
  }

 private:
  static constinit thread_local const Autocast* innermost_;
  const Autocast* const outer_;
  std::optional<Recipe> recipe_;
};

/// Throws Error "fp8: ..." unless the device computes FP8 products: a CPU, which imitates them, and
/// GPUs from compute capability 8.9 on.
void check_device(Device device);

/// Reduces one or more f32 on their device to the largest of each over a group of ranks. Every rank
/// of the group calls it, also one without rows.
using ReduceAmax = std::function<void(const Tensor& amax)>;

/// A rounded matrix, or several below each other.
struct Quantized {
  Tensor rows;            ///< (R, C) e4m3 or e5m2; null where only the transposed copy is needed
  Tensor columns;         ///< transposed, group by group; on a GPU, for backward
  Tensor inverse;         ///< f32: what a group's numbers are multiplied by
  Fp8Tile tile = {0, 0};  ///< of block scales
};

/// Which copies quantize() makes.
struct Copies {
  bool rows = true, columns = false;
};

/// x rounded with a scale from its own largest magnitude for each group of rows. `row_amax`: the
/// largest magnitude of each row (R) f32, if known; x is then read once.
///
/// Shapes   x (R, C)
/// Dtypes   f32, bf16 -> e4m3, e5m2
/// Device   cpu, cuda, meta; the scale stays on the device, and the host does not wait
Quantized quantize(const Tensor& x, const RowGroups& groups, DType to, const Fp8Scaling& how,
                   const Copies& copies = {}, const ReduceAmax& reduce = {},
                   const Tensor& row_amax = {});
/// The same in blocks with a scale each; makes no transposed copy.
Quantized quantize_tiles(const Tensor& x, const RowGroups& groups, DType to, const Fp8Tile& tile,
                         const Fp8Scaling& how);
/// The transposed copy of codes (R, C), group by group.
Tensor transposed_codes(const Tensor& codes, const RowGroups& groups);
/// The numbers that q stands for, as `dtype`: f32 or bf16.
Tensor dequantize(const Quantized& q, const RowGroups& groups, DType dtype);

/// x as it travels between ranks: blocks of 128 neighbours of a row, rounded with power-of-two
/// scales. A row has the same codes wherever it is rounded.
///
/// Shapes   x (R, C)
/// Dtypes   f32, bf16 -> e4m3
/// Device   cpu, cuda, meta
/// Throws   Error on another dtype or number of axes
Quantized quantize_rows(const Tensor& x);
/// The numbers that arrive where codes of x are sent: for ranks that send nothing. Rounding counts
/// as the identity, dx = dy.
///
/// Shapes   x (R, C) -> (R, C)
/// Dtypes   f32, bf16; both hold the numbers exactly
/// Device   cpu, cuda, meta
/// Saves    nothing
/// Throws   Error on another dtype or shape
Tensor rounded_rows(const Tensor& x);

/// The delayed scales of a layer: a buffer that its module lists, so that checkpoints have it. A
/// step of the layer writes it: threads that train at once each need a model of their own.
struct Delayed {
  Tensor history;  ///< (Recipe::history, 3) f32; row 0 belongs to the step that runs
  Tensor scale;    ///< (3) f32, of x, weight and dy; 0 stands for 1
  bool defined() const { return history.defined(); }
};
enum class Operand : std::uint8_t { x, weight, gradient };
/// Writes the scale that an operand has in this step, and its inverse: (1) f32 each.
void take_scale(const Delayed& state, Operand operand, const Tensor& scale, const Tensor& inverse);
/// The largest of these magnitudes (n) f32 enters the history of this step.
void count_amax(const Delayed& state, Operand operand, const Tensor& amax);
/// x rounded with the scale of the steps before; its largest magnitude enters the history of this
/// step if `counts`.
Quantized quantize_delayed(const Tensor& x, const RowGroups& groups, DType to, const Delayed& state,
                           Operand operand, bool counts, const Copies& copies = {},
                           const Tensor& row_amax = {});
/// The end of a step: the scales of the next one.
void roll(const Delayed& state, const Recipe& recipe);

/// A weight's rounded copy, until the weight changes. A copy of the cache is empty. Threads that
/// share a model may call get() at once; the first one makes the copy.
class WeightCache {
 public:
  WeightCache() = default;
  WeightCache(const WeightCache&) {}
  WeightCache(WeightCache&& other) noexcept { *this = std::move(other); }
  WeightCache& operator=(const WeightCache&) {
    clear();
    return *this;
  }
  WeightCache& operator=(WeightCache&& other) noexcept {
    copy_ = std::exchange(other.copy_, {});
    weight_ = std::exchange(other.weight_, {});
    version_ = other.version_;
    settings_ = other.settings_;
    amax_ = std::exchange(other.amax_, {});
    given_ = std::exchange(other.given_, false);
    return *this;
  }

  /// The copy of this weight, made by make() if the weight was written since, or with other
  /// settings (any number that tells them apart), or lacks the transposed copy.
  template <class F>
  Quantized get(const Tensor& weight, std::uint64_t settings, bool columns, F make) {
    const std::lock_guard lock(mutex_);
    if (!holds(weight, settings, columns)) {
      clear();
      copy_ = make();
      keep(weight, settings);
    }
    return copy_;
  }
  /// Codes that other code keeps up to date while the weight has no memory: they replace those
  /// that get() would make, and the next give() or clear() replaces them.
  struct Given {
    Quantized codes;
    Tensor amax = {};  ///< (1) f32, which enters the history of delayed scales when they are used
  };
  void give(const Tensor& weight, const Given& given);
  /// These codes. `columns`: with the transposed copy, `groups` those of its rows.
  std::optional<Given> given(const Tensor& weight, bool columns, const RowGroups& groups);
  bool is_given() const { return given_; }
  /// The copy that it holds, or null.
  const Quantized* held() const { return weight_.defined() ? &copy_ : nullptr; }
  void clear() {
    copy_ = {};
    weight_ = {};
    amax_ = {};
    given_ = false;
  }

 private:
  bool holds(const Tensor& weight, std::uint64_t settings, bool columns) const;
  void keep(const Tensor& weight, std::uint64_t settings);
  std::mutex mutex_;
  Quantized copy_;
  Tensor weight_;  // keeps the storage alive, so that its address stays its own
  std::uint32_t version_ = 0;
  std::uint64_t settings_ = 0;
  Tensor amax_;
  bool given_ = false;
};

/// What a layer with FP8 products keeps between calls.
struct LayerState {
  mutable WeightCache weight;
  Delayed delayed;
};

}  // namespace weft::fp8
