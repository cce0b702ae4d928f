#include "weft/distributed/nccl_world.h"

#include <exception>

#include "weft/core/error.h"

#if WEFT_WITH_CUDA
#include "weft/distributed/alone_channel.h"
#include "weft/distributed/nccl_comms.h"
#include "weft/distributed/nccl_job.h"
#endif

namespace weft::distributed {

#if WEFT_WITH_CUDA

namespace {

class NcclWorld : public World {
 public:
  NcclWorld(World& bootstrap, Device device, const WorldOptions& options)
      : World(bootstrap.rank(), bootstrap.size(), options),
        bootstrap_(bootstrap),
        device_(device),
        job_(std::make_shared<NcclJob>(device, bootstrap, options)),
        exceptions_(std::uncaught_exceptions()) {
    start(false);  // no communication thread: collectives run asynchronously on the GPU
    job_->set_recorder(shared_recorder());
  }
  ~NcclWorld() override {
    stop();
    // A rank that ends with an error makes no more collectives: abandon those in flight.
    if (std::uncaught_exceptions() > exceptions_)
      job_->give_up();
    else
      end();
  }
  const char* backend() const override { return "nccl"; }
  std::string failure() const override {
    const std::string own = job_->failure();
    return own.empty() ? bootstrap_.failure() : own;
  }
  void fail(const std::string& why) override { bootstrap_.fail(why); }
  int communicators() const override { return comms_->size(); }

 protected:
  std::shared_ptr<Channel> open(const GroupCall& call) override {
    if (call.number == 0) comms_ = std::make_shared<NcclComms>(bootstrap_, job_, call.lists);
    if (!CommunicatorPlan::can_wait(*call.lists, size())) comms_->of(call);
    if (call.list < 0) return nullptr;
    // A world of one rank has a communicator, in the first queue: it shows that NCCL works.
    if (call.ranks().size() == 1 && (size() > 1 || call.queue > 0))
      return std::make_shared<AloneChannel>(call.name, call.ranks(), device_);
    return std::make_shared<NcclChannel>(call, job_, comms_);
  }

 private:
  // wait() throws what happens before it. What happens to a collective later, or to one whose Work
  // was dropped, is reported by the end of the hosts' world.
  void end() {
    job_->finish();
    std::string why = unseen_failure();
    if (why.empty() && !has_thrown()) why = job_->aborted_in_flight();
    if (!why.empty()) bootstrap_.fail_at_end(why);
  }

  World& bootstrap_;
  const Device device_;
  std::shared_ptr<NcclJob> job_;
  std::shared_ptr<NcclComms> comms_;
  const int exceptions_;
};

}  // namespace

std::unique_ptr<World> nccl_world(World& bootstrap, Device device, const WorldOptions& options) {
  check(device.is_cuda(), "nccl_world: device must be a cuda device, got {}", device);
  nccl_version();
  cuda::check_device(device);
  return std::make_unique<NcclWorld>(bootstrap, device, options);
}

int nccl_version() { return cuda::nccl::version(); }

#else

std::unique_ptr<World> nccl_world(World&, Device, const WorldOptions&) {
  nccl_version();
  return nullptr;
}

int nccl_version() {
  throw Error("nccl_world: this library was built without CUDA; configure it with -DWEFT_CUDA=ON");
}

#endif

}  // namespace weft::distributed
