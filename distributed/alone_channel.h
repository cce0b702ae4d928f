#pragma once
#include <string>
#include <utility>
#include <vector>

#include "weft/distributed/channel.h"

namespace weft::distributed {

/// A group of one rank, which receives what it sends: nothing connects it to other ranks. On a GPU
/// it copies in the caller's stream.
class AloneChannel : public Channel {
 public:
  AloneChannel(std::string name, std::vector<int> ranks, Device device)
      : Channel(std::move(name), std::move(ranks), 0), device_(device) {}
  void run(Operation& op) override;
  Device device() const override { return device_; }

 private:
  const Device device_;
};

}  // namespace weft::distributed
