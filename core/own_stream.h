#pragma once
#include "weft/core/cuda.h"

namespace weft::cuda {

/// Takes a stream of the device and makes it the current one of this thread until the end of the
/// scope. Ranks that share a GPU need one each, else they wait for each other's kernels.
class OwnStream {
 public:
  explicit OwnStream(Device device) : stream_(Stream::take(device)), scope_(stream_) {}
  ~OwnStream() { stream_.give_back(); }
  OwnStream(const OwnStream&) = delete;

 private:
  Stream stream_;
  StreamScope scope_;
};

}  // namespace weft::cuda
