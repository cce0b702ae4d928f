#pragma once
#include <cstdint>
#include <vector>

#include "weft/distributed/ddp.h"

namespace weft::distributed {

/// The weights of a bucket that every rank holds as FP8 codes and their owner alone as bf16. After
/// an update each rank rounds its slice with the scale of the whole weight, and the codes are
/// gathered: half of bf16's bytes. The layers multiply them as they are. The bf16 tensors of the
/// model have no memory. With current scaling the owners' largest magnitudes are reduced first;
/// with delayed scaling the scale is known, and their magnitudes enter the history when the layer
/// is used: nn::Fp8Step::finish() must reduce it over the ranks, and the next update follows it.
class Fp8Gather {
 public:
  /// The Ddp, with its layers, must outlive it.
  Fp8Gather(const Ddp& ddp, const Ddp::Bucket& bucket);
  /// Makes the first codes, and takes the memory of the bf16 weights.
  void begin();
  /// Rounds the slice and starts to gather; arrived() follows when the work is done.
  Work gather();
  void arrived();

  /// Gathers the bf16 weights from their owners.
  void restore();
  /// If code has written the weights since restore(): takes this rank's slice of them.
  void take_written();
  /// Takes the memory of the bf16 weights back, and makes new codes of what was written.
  void release();

 private:
  /// What has a scale: a weight, or an expert's.
  struct Piece {
    std::int64_t group, in_slice, size;
  };
  struct Holder {
    nn::Fp8Layer layer;
    std::int64_t begin, first_group, groups;
  };
  Tensor part(const Tensor& flat, const Piece& piece) const;

  const Ddp::Bucket& bucket_;
  const Fp8Scaling how_;
  const bool delayed_;
  std::vector<Holder> holders_;
  std::vector<Piece> own_;
  Tensor codes_, slice_, amax_, scale_, inverse_;
  std::uint32_t restored_at_ = 0;  ///< version of the bf16 weights
  bool stale_ = false;
};

}  // namespace weft::distributed
