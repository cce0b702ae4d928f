#include "weft/distributed/world.h"

namespace weft::distributed {
namespace {

class FakeChannel : public Channel {
 public:
  using Channel::Channel;
  void run(Operation&) override {}
  bool takes(Device) const override { return true; }
};

class FakeWorld : public World {
 public:
  FakeWorld(int rank, int size, const WorldOptions& options) : World(rank, size, options) {
    start(false);
  }
  ~FakeWorld() override { stop(); }
  const char* backend() const override { return "fake"; }

 protected:
  std::shared_ptr<Channel> open(const std::string& name, const std::vector<int>& ranks,
                                int rank_in_group, int) override {
    return std::make_shared<FakeChannel>(name, ranks, rank_in_group);
  }
};

}  // namespace

std::unique_ptr<World> fake_world(int rank, int size, const WorldOptions& options) {
  return std::make_unique<FakeWorld>(rank, size, options);
}

}  // namespace weft::distributed
