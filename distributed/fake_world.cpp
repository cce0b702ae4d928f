#include <memory>
#include <utility>

#include "weft/distributed/communicator_plan.h"
#include "weft/distributed/world.h"

namespace weft::distributed {
namespace {

class FakeChannel : public Channel {
 public:
  FakeChannel(const GroupCall& call, std::shared_ptr<CommunicatorPlan> plan)
      : Channel(call.name, call.ranks(), call.rank),
        lists_(call.lists),
        queue_(call.queue),
        plan_(std::move(plan)) {}
  void run(Operation&) override {
    if (!lists_) return;
    plan_->use(lists_, queue_);
    lists_.reset();
  }
  bool takes(Device) const override { return true; }

 private:
  std::shared_ptr<const RankLists> lists_;  // until the first collective
  const int queue_;
  const std::shared_ptr<CommunicatorPlan> plan_;
};

class FakeWorld : public World {
 public:
  FakeWorld(int rank, int size, const WorldOptions& options) : World(rank, size, options) {
    start(false);
  }
  ~FakeWorld() override { stop(); }
  const char* backend() const override { return "fake"; }
  int communicators() const override { return plan_->size(); }

 protected:
  std::shared_ptr<Channel> open(const GroupCall& call) override {
    if (call.number == 0 || !CommunicatorPlan::can_wait(*call.lists, size()))
      plan_->use(call.lists, call.queue);
    return call.list >= 0 ? std::make_shared<FakeChannel>(call, plan_) : nullptr;
  }

 private:
  const std::shared_ptr<CommunicatorPlan> plan_ = std::make_shared<CommunicatorPlan>();
};

}  // namespace

std::unique_ptr<World> fake_world(int rank, int size, const WorldOptions& options) {
  return std::make_unique<FakeWorld>(rank, size, options);
}

}  // namespace weft::distributed
