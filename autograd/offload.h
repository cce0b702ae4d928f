#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/autograd/save_watch.h"
#include "weft/core/offload_memory.h"

namespace weft {

struct OffloadOptions {
  std::string folder = {};             ///< on the CPU: where the file is
  double fraction = 1;                 ///< of the layers, from the first one
  std::int64_t least_bytes = 1 << 20;  ///< smaller tensors stay
};

/// Moves tensors that ops saved for backward out of the device's memory until backward reads them:
/// into a memory-mapped file on the CPU, into pinned host memory on a GPU. It acts on saved tensors
/// alone: ops and layers do not know of it. A tensor moves when only the ops that saved it still
/// own it; parameters, the caller's tensors and the stream between layers therefore stay.
///
///   Offload offload({.folder = "/scratch"}, model_device);
///   const Offload::Use use(offload);
///   Tape tape;
///   model.losses(ids, targets).total().backward();  // same bits, less memory
///
/// For one thread at a time; it must outlive the tapes. On the meta devices it counts bytes only.
class Offload {
 public:
  /// Throws Error where OffloadMemory does.
  Offload(const OffloadOptions& options, Device device);
  ~Offload();
  Offload(const Offload&) = delete;

  /// This thread's layers use the offload until the end of the scope.
  class Use {
   public:
    explicit Use(Offload& offload);
    ~Use();
    Use(const Use&) = delete;

   private:
    Offload* const previous_;
  };
  static Offload* current();

  /// Bytes that wait outside now, and those of the file or of pinned memory.
  std::int64_t waiting_bytes() const { return waiting_; }
  std::int64_t reserved_bytes() const { return memory_.bytes(); }
  /// Bytes that went outside or came back so far.
  std::int64_t moved_bytes() const { return memory_.moved_bytes(); }

 private:
  friend class OffloadLayers;
  class Away;
  /// A saved tensor that may move still, by its number in the watch, and its layer.
  struct Candidate {
    std::size_t number;
    int layer;
  };
  bool send_away(Storage& s, int layer);
  void expect(int layer);

  const OffloadOptions options_;
  OffloadMemory memory_;
  std::vector<std::vector<Away*>> away_;  ///< by layer; null where a tensor has come back
  std::vector<Candidate> candidates_;     ///< of this pass; kept, so that a step allocates nothing
  std::int64_t waiting_ = 0;
};

/// Offloads what a sequence of layers saves, if an Offload is in use: open it around the layers and
/// call end_layer() after each. In backward, the first tensor that a layer needs starts to bring
/// back those of the layer before it.
class OffloadLayers : SaveWatch {
 public:
  explicit OffloadLayers(std::int64_t layers);
  void end_layer();

 private:
  Offload* const offload_;
  int chosen_ = 0, layer_ = 0;
  std::size_t next_ = 0;  ///< number of the first tensor of the next layer
};

}  // namespace weft
