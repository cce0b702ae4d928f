#pragma once
#include <cstdint>
#include <vector>

#include "weft/core/named_tensor.h"
#include "weft/distributed/layout.h"

namespace weft::distributed {

/// One parameter in a bucket: elements [begin, begin + size) of it.
struct BucketEntry {
  std::size_t parameter = 0;  ///< index in the list of all parameters
  std::int64_t begin = 0, size = 0;
};

/// Parameters whose gradients travel together: one flat buffer.
struct BucketLayout {
  bool expert = false, tp_partial = false;
  DType param_dtype = DType::f32, grad_dtype = DType::f32;
  std::int64_t size = 0;  ///< elements, with what fills gaps and the end
  std::vector<BucketEntry> entries;
};

struct BucketOptions {
  std::int64_t bucket_size = 0;   ///< elements that close a bucket; 0: default_bucket_size()
  DType grad_dtype = DType::f32;  ///< or bf16; gradients of f64 parameters are f64
  int dense_ranks = 1, expert_ranks = 1;  ///< that each kind's gradients are summed over
  int dense_parts = 1, expert_parts = 1;  ///< that a cut parameter of each kind comes in
};

/// Elements that close a bucket of gradients unless somebody says otherwise. `total`: those of one
/// kind and dtype that a rank holds; `ranks`: that they are summed over.
///
/// An eighth of the total, so that what is left to send when backward ends is a small part. At
/// least 262144 for each rank: the messages of a ring are then 1 MiB in f32, long beside their
/// latency. At most max(40e6, 1e6 ranks), the default of Megatron-LM.
std::int64_t default_bucket_size(std::int64_t total, int ranks);

/// The buckets of a model: parameters in reverse order, because backward comes to the last ones
/// first, of one kind and dtype each. Every parameter starts at a multiple of 64 elements, and a
/// bucket's size is a multiple of 128 and of the number of ranks, so that each of them can own an
/// equal slice. The list is in the order of the buckets' last parameters. Where a bucket ends
/// follows from sizes that are the same on every rank, whatever part of a parameter it holds: all
/// ranks have the same parameters in the same buckets, and send them at the same point of backward.
/// Throws Error on a dtype of gradients other than f32 and bf16.
std::vector<BucketLayout> plan_buckets(const NamedTensors& parameters, const Layout& layout,
                                       const BucketOptions& options);

/// What one rank's slice of a bucket holds of one parameter.
struct OwnedRange {
  std::size_t parameter = 0;
  std::int64_t in_bucket = 0;     ///< first element, counted in the bucket
  std::int64_t in_slice = 0;      ///< the same element, counted in the rank's slice
  std::int64_t in_parameter = 0;  ///< and in the parameter
  std::int64_t size = 0;
};

/// Rank r of n owns the r-th n-th of a bucket, whatever parameters begin or end there.
std::vector<OwnedRange> owned_ranges(const BucketLayout& bucket, int rank, int ranks);

}  // namespace weft::distributed
