#include "weft/core/error.h"
#include "weft/distributed/nccl_comms.h"
#include "weft/distributed/nccl_job.h"
#include "weft/distributed/operation.h"

#if WEFT_WITH_CUDA

namespace weft::distributed {
namespace {

namespace nccl = cuda::nccl;
using Counts = std::vector<std::int64_t>;

bool equal(const Counts& counts) {
  for (const std::int64_t c : counts)
    if (c != counts[0]) return false;
  return true;
}

nccl::Reduce how(Reduce r) {
  return r == Reduce::sum   ? nccl::Reduce::sum
         : r == Reduce::max ? nccl::Reduce::max
                            : nccl::Reduce::min;
}

// Groups several NCCL calls into one. Ends the group also if a call throws.
template <class Calls>
void together(Calls calls) {
  nccl::begin();
  try {
    calls();
  } catch (...) {
    try {
      nccl::end();
    } catch (const Error&) {  // report the first error
    }
    throw;
  }
  nccl::end();
}

}  // namespace

NcclChannel::NcclChannel(const GroupCall& call, std::shared_ptr<NcclJob> job,
                         std::shared_ptr<NcclComms> comms)
    : Channel(call.name, call.ranks(), call.rank),
      call_(call),
      job_(std::move(job)),
      comms_(std::move(comms)) {
  job_->add_group(name(), ranks());
}

void NcclChannel::connect() {
  comm_ = comms_->of(call_);
  token_ = Tensor::zeros({1}, DType::f32, job_->device());
}

void NcclChannel::run(Operation& op) {
  if (op.is_meta()) return;
  if (!comm_) connect();
  job_->run(op, call_.queue, comm_, [&] { call(op); });
  op.enqueued = true;
}

void NcclChannel::finish(Operation& op) {
  if (op.is_meta()) return;
  job_->join(op, call_.queue, op.kind == Collective::barrier);
}

void NcclChannel::abandon(Operation& op) { job_->abandon(op, call_.queue); }

void NcclChannel::call(const Operation& op) {
  const cuda::rt::StreamHandle s = job_->stream(call_.queue);
  switch (op.kind) {
    case Collective::all_reduce:
      return nccl::all_reduce(op.in.raw(), op.out.raw(), op.in.numel(), op.dtype(), how(op.reduce),
                              comm_, s);
    case Collective::all_gather:
      return gather(op);
    case Collective::reduce_scatter:
      return reduce(op);
    case Collective::all_to_all:
      return all_to_all(op);
    case Collective::broadcast:
      return nccl::broadcast(op.in.raw(), op.out.raw(), op.in.numel() * op.element_bytes(), op.root,
                             comm_, s);
    case Collective::exchange:
    case Collective::send:
    case Collective::receive:
    case Collective::batch:
      return together([&] {
        const auto bytes = [](const Tensor& t) {
          return t.numel() * static_cast<std::int64_t>(size_of(t.dtype()));
        };
        for (const Transfer& t : op.sends)
          nccl::send(t.tensor.raw(), bytes(t.tensor), t.rank, comm_, s);
        for (const Transfer& t : op.receives)
          nccl::receive(t.tensor.raw(), bytes(t.tensor), t.rank, comm_, s);
      });
    case Collective::barrier:
      return nccl::all_reduce(token_.raw(), token_.raw(), 1, DType::f32, nccl::Reduce::max, comm_,
                              s);
  }
}

void NcclChannel::gather(const Operation& op) {
  const cuda::rt::StreamHandle s = job_->stream(call_.queue);
  if (equal(op.out_count))
    return nccl::all_gather(op.in.raw(), op.out.raw(), op.in.numel() * op.element_bytes(), comm_,
                            s);
  together([&] {
    std::int64_t first = 0;
    for (int r = 0; r < size(); ++r) {
      char* const to = bytes_of(op.out, first);
      if (count_of(op.out_count, r) > 0)
        nccl::broadcast(r == rank() ? op.in.raw() : to, to,
                        count_of(op.out_count, r) * op.element_bytes(), r, comm_, s);
      first += count_of(op.out_count, r);
    }
  });
}

void NcclChannel::reduce(const Operation& op) {
  const cuda::rt::StreamHandle s = job_->stream(call_.queue);
  if (equal(op.in_count))
    return nccl::reduce_scatter(op.in.raw(), op.out.raw(), op.out.numel(), op.dtype(),
                                how(op.reduce), comm_, s);
  together([&] {
    std::int64_t first = 0;
    for (int r = 0; r < size(); ++r) {
      if (count_of(op.in_count, r) > 0)
        nccl::reduce(bytes_of(op.in, first), op.out.raw(), count_of(op.in_count, r), op.dtype(),
                     how(op.reduce), r, comm_, s);
      first += count_of(op.in_count, r);
    }
  });
}

void NcclChannel::all_to_all(const Operation& op) {
  const cuda::rt::StreamHandle s = job_->stream(call_.queue);
  together([&] {
    std::int64_t in = 0, out = 0;
    for (int r = 0; r < size(); ++r) {
      if (count_of(op.in_count, r) > 0)
        nccl::send(bytes_of(op.in, in), count_of(op.in_count, r) * op.element_bytes(), r, comm_, s);
      if (count_of(op.out_count, r) > 0)
        nccl::receive(bytes_of(op.out, out), count_of(op.out_count, r) * op.element_bytes(), r,
                      comm_, s);
      in += count_of(op.in_count, r);
      out += count_of(op.out_count, r);
    }
  });
}

}  // namespace weft::distributed

#endif
