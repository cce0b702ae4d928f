#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/distributed/alone_channel.h"
#include "weft/distributed/operation.h"
#include "weft/distributed/world.h"

namespace weft::distributed {
namespace {

class AnyDevice : public AloneChannel {
 public:
  AnyDevice(const std::string& name, const std::vector<int>& ranks)
      : AloneChannel(name, ranks, kCpu) {}
  bool takes(Device) const override { return true; }
};

class AloneWorld : public World {
 public:
  AloneWorld() : World(0, 1, {}) { start(false); }
  ~AloneWorld() override { stop(); }
  const char* backend() const override { return "alone"; }

 protected:
  std::shared_ptr<Channel> open(const GroupCall& call) override {
    return call.list >= 0 ? std::make_shared<AnyDevice>(call.name, call.ranks()) : nullptr;
  }
};

}  // namespace

void AloneChannel::run(Operation& op) {
  if (op.is_meta()) return;
  const NoGradGuard off;
  const auto copy = [](const Tensor& to, const Tensor& from) {
    if (!from.same(to)) to.view({-1}).copy_(from.view({-1}));
  };
  if (op.in.defined() && op.out.defined()) copy(op.out, op.in);
  if (!is_message(op.kind)) return;
  check(op.sends.size() == op.receives.size(),
        "{}: a group of one rank must receive each message it sends, got {} sends, {} receives",
        describe(op), op.sends.size(), op.receives.size());
  for (std::size_t i = 0; i < op.sends.size(); ++i) {
    const std::string wrong = difference(op, op.sends[i], op, op.receives[i], *this);
    check(wrong.empty(), "{}", wrong);
    copy(op.receives[i].tensor, op.sends[i].tensor);
  }
}

std::unique_ptr<World> World::alone() { return std::make_unique<AloneWorld>(); }

}  // namespace weft::distributed
