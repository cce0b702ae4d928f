#pragma once
#include <cstdint>
#include <vector>

#include "weft/core/named_tensor.h"
#include "weft/distributed/layout.h"

namespace weft::distributed {

/// Part of a bucket that holds one parameter: elements [begin, begin + size).
struct BucketEntry {
  std::size_t parameter = 0;  ///< index in the list of all parameters
  std::int64_t begin = 0, size = 0;
};

/// Parameters whose gradients are reduced together, in one flat buffer.
struct BucketLayout {
  bool expert = false, tp_partial = false;
  bool codes = false;  ///< of weights that ranks hold as FP8 codes
  int unit = 0;        ///< see BucketOptions::unit_of
  DType param_dtype = DType::f32, grad_dtype = DType::f32;
  std::int64_t size = 0;  ///< elements, including padding
  std::vector<BucketEntry> entries;
};

struct BucketOptions {
  std::int64_t bucket_size = 0;   ///< elements that close a bucket; 0: default_bucket_size()
  DType grad_dtype = DType::f32;  ///< or bf16; gradients of f64 parameters are f64
  int dense_ranks = 1, expert_ranks = 1;  ///< ranks that gradients of each kind are summed over
  int dense_parts = 1, expert_parts = 1;  ///< shards of a parameter of each kind
  std::int64_t slice_multiple = 1;        ///< a rank's slice is a multiple of this; a power of two
  std::vector<Tensor> as_codes = {};      ///< parameters whose buckets have `codes`
  /// The unit of each parameter. If given, a bucket holds all of a unit that is of one kind and
  /// dtype, and bucket_size is not used.
  std::vector<int> unit_of = {};
};

/// Default number of elements that close a gradient bucket. `total` is the number of elements of
/// one kind and dtype on a rank; `ranks` is the number of ranks that they are summed over.
///
/// The result is an eighth of the total, so that little is left to send when backward ends, but at
/// least 262144 per rank: a ring then sends messages of 1 MiB in f32, which take long compared with
/// their latency. It is at most max(40e6, 1e6 ranks), the default of Megatron-LM.
std::int64_t default_bucket_size(std::int64_t total, int ranks);

/// Elements of a parameter on a rank, as if its shards were of equal size: the same number on every
/// rank.
std::int64_t typical_size(const NamedTensor& parameter, const Layout& layout,
                          const BucketOptions& options);

/// Plans the buckets of a model. Parameters are taken in reverse order, because backward reaches
/// the last ones first; a bucket holds one kind and dtype. Every parameter starts at a multiple of
/// 64 elements. A bucket's size is above 0 and a multiple of 128 and of the number of ranks, so
/// that each rank can own an equal slice. The result is sorted by the buckets' last parameters.
/// Bucket boundaries depend on sizes that are equal on every rank, not on the shards of this rank:
/// all ranks have the same parameters in the same buckets and send them at the same point of
/// backward. Throws Error unless grad_dtype is f32 or bf16, and on a bucket_size below 0.
std::vector<BucketLayout> plan_buckets(const NamedTensors& parameters, const Layout& layout,
                                       const BucketOptions& options);

/// Part of one parameter in one rank's slice of a bucket.
struct OwnedRange {
  std::size_t parameter = 0;
  std::int64_t in_bucket = 0;     ///< first element, as an index into the bucket
  std::int64_t in_slice = 0;      ///< into the rank's slice
  std::int64_t in_parameter = 0;  ///< into the parameter
  std::int64_t size = 0;
};

/// Rank r of n owns the r-th n-th of a bucket, independent of parameter boundaries.
std::vector<OwnedRange> owned_ranges(const BucketLayout& bucket, int rank, int ranks);

}  // namespace weft::distributed
