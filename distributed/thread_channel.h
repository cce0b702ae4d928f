#pragma once
#include <memory>
#include <string>
#include <vector>

#include "weft/distributed/thread_job.h"

namespace weft::distributed {

/// A channel between ranks that are threads of this process: each rank reads its peers' tensors in
/// place. On a GPU the host threads only meet: each rank's stream waits for events of its peers'
/// streams, one kernel reads the tensors of all ranks, and no kernel waits for another kernel.
class ThreadChannel : public Channel {
 public:
  ThreadChannel(const std::string& name, const std::vector<int>& ranks, int rank,
                std::shared_ptr<Job> job, std::shared_ptr<Rendezvous> rendezvous);
  void run(Operation& op) override;
  bool takes(Device device) const override;

 private:
  void carry_out(Operation& op);
  void check_same() const;
  void check_same_device(const Operation& a, int rank_a, const Operation& b, int rank_b) const;
  void all_reduce(Operation& op);
  void combine(const Operation& op, std::int64_t to, std::int64_t first, std::int64_t elements);
  void pass_messages(Operation& op);
  void receive(Operation& op);
  void wait_for_peers(const Operation& op, cuda::Event Operation::*event) const;
  void leave(Operation& op);

  const std::shared_ptr<Job> job_;
  const std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<const void*> parts_;  // inputs of a reduction, by rank
  std::vector<char> received_;      // of the messages of a call, by place in its list
  std::vector<char> scratch_;       // for small reductions
};

}  // namespace weft::distributed
