#pragma once
#include <array>
#include <memory>
#include <vector>

#include "weft/distributed/message_job.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {

/// What ranks compare to check that they made the same call.
struct CallPrint {
  Collective kind = Collective::barrier;
  Reduce reduce = Reduce::sum;
  DType dtype = DType::u8;
  bool has_out = false, has_in = false, in_place = false;
  std::int32_t root = -1;
  std::int64_t sequence = 0;
  std::uint64_t counts = 0;                ///< hash of the element counts by rank
  std::uint64_t group = 0;                 ///< hash of the group's name and ranks
  std::int64_t sends = 0, expects = 0;     ///< elements between this pair of ranks
  std::int32_t out_dims = 0, in_dims = 0;  ///< shapes, for error messages
  std::int64_t out_shape[kMaxDims] = {}, in_shape[kMaxDims] = {};
};

/// A group over messages. A reduction sends each shard to its owner, which adds the shards in rank
/// order and sends the result back, in chunks of bounded size. GPU tensors are copied through host
/// memory.
class MessageChannel : public Channel {
 public:
  MessageChannel(const GroupCall& call, std::shared_ptr<MessageJob> job);
  void run(Operation& op) override;
  bool takes(Device device) const override { return device.is_cuda(); }

 private:
  enum Batch : int { kParts, kParts2, kSendParts, kSendParts2, kSums, kSums2, kPrints, kData };

  void run_on_host(Operation& op);
  void run_over_host(const Operation& op);
  void carry_out(Operation& op);
  void pass_messages(Operation& op);
  void reduce(Operation& op);
  void broadcast(Operation& op);
  void move(Operation& op);
  void barrier();

  // distributed/message_compare.cpp
  static std::uint64_t hash_of(const GroupCall& call);
  CallPrint print_for(const Operation& op, int peer) const;
  CallPrint print_for(const Operation& op, const Transfer& transfer) const;
  void compare_with_ring(const Operation& op);
  void compare_with_all(const Operation& op);
  void send_print(const CallPrint& print, int to, std::size_t slot);
  void expect_print(int from);
  /// Once the prints have arrived. Throws when a rank made a different call.
  void check_prints(const Operation& op);
  void check_group(const CallPrint& print, int peer) const;
  void check_print(const Operation& op, const CallPrint& print, int peer);
  void check_message(const Operation& op, const CallPrint& print, const Transfer& expected);
  void wait(const Operation& op, std::initializer_list<Batch> batches);

  void send(int to, const void* data, std::int64_t bytes, Batch batch);
  void receive(int from, void* data, std::int64_t bytes, Batch batch);

  std::shared_ptr<MessageJob> job_;
  MessageQueue& queue_;
  const std::int64_t number_;
  const std::uint64_t group_hash_;
  int tag_ = 0;
  std::vector<CallPrint> own_prints_, prints_;
  std::vector<int> print_peers_;  // peers whose prints_ are not yet checked
  std::vector<const void*> parts_;
  Operation on_host_;  // stands in for an operation whose tensors are on a GPU
};

}  // namespace weft::distributed
