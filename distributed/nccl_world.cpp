#include "weft/distributed/nccl_world.h"

#include <exception>

#include "weft/core/error.h"

#if WEFT_WITH_CUDA
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
      job_->finish();
  }
  const char* backend() const override { return "nccl"; }
  std::string failure() const override {
    const std::string own = job_->failure();
    return own.empty() ? bootstrap_.failure() : own;
  }
  void fail(const std::string& why) override { bootstrap_.fail(why); }

 protected:
  std::shared_ptr<Channel> open(const std::string& name, const std::vector<int>& ranks,
                                int rank_in_group, int) override {
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(cuda::nccl::Id));
    cuda::nccl::Id id;
    if (rank_in_group == 0) id = cuda::nccl::make_id();
    const Tensor carried = Tensor::wrap(id.bytes, {kBytes}, DType::u8);
    bootstrap_.all().broadcast(carried, ranks[0]).wait();
    if (rank_in_group < 0) return nullptr;
    return std::make_shared<NcclChannel>(name, ranks, rank_in_group, job_, id);
  }

 private:
  World& bootstrap_;
  std::shared_ptr<NcclJob> job_;
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
