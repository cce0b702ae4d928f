#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "weft/core/cuda.h"

namespace weft {
struct RandomState;
}

namespace weft::cuda {

/// Work on a GPU that is recorded once and then started again with a single call: a training step
/// has hundreds of kernels, and each costs the host microseconds to launch.
///
///   cuda::Graph graph;
///   graph.capture([&] {  // after a step or two without: what is made at first use is made then
///     loss = forward_and_backward(inputs);
///     optimizer.step(optim::measure_clip(parameters, 1));
///     optimizer.zero_grad();
///   });
///   for (...) {
///     inputs.copy_(next_batch);
///     optimizer.set_lr(lr);
///     const RandomScope random({.seed = seed, .step = step});
///     graph.replay();
///   }
///
/// A replay launches the kernels that were recorded, on the memory that they were recorded with: it
/// gives the bits that running the work again would give. Between replays may change: the values of
/// tensors (copy into them; their shapes stay), the learning rate, the optimizer's count of updates
/// and with it Adam's corrections, and the step of the RandomScope that replay() is called in. Its
/// seed must be that of the capture; micro-batch, first row and offset stay those of the capture.
///
/// What cannot be inside throws Error, and the capture is given up: waiting for a GPU or reading a
/// value (nothing runs before replay()), copying from the host, random numbers without a
/// RandomScope, events, other streams.
///
/// Memory that is allocated inside is the graph's own until it is destroyed; so are blocks that
/// existed before and are freed inside. Results are tensors made inside: a replay writes new values
/// into them. What is used inside and was made outside (parameters, an optimizer, inputs) must
/// outlive the graph and stay where it is.
class Graph {
 public:
  /// Captures, and replays into, what is the calling thread's current stream of the device now.
  explicit Graph(Device device = {Device::Kind::cuda, 0});
  /// Waits for the last replay.
  ~Graph();
  Graph(const Graph&) = delete;

  /// Runs `work` once, recording what it gives to the stream instead of running it. Cached memory
  /// of the device is given back first, since the graph will have its own. Throws Error when the
  /// graph's stream is not the current one.
  template <class F>
  void capture(F&& work) {
    Recording recording(*this);
    std::forward<F>(work)();
    recording.finish();
  }
  bool captured() const;
  /// Runs it in the graph's stream, whatever the current one is. The host does not wait.
  void replay();

  /// The one that this thread is capturing, or null.
  static Graph* capturing();

  // For ops, inside a capture.

  /// Copies `bytes` to the device once, before the first replay, and says where they will be.
  const void* constant(const void* data, std::int64_t bytes);
  /// A value on the device that each replay reads as it is on the host then.
  template <class T>
  struct Varying {
    T* host;
    const T* device;
  };
  template <class T>
  Varying<T> varying() {
    const Place p = place_value(sizeof(T));
    return {new (p.host) T{}, static_cast<const T*>(p.device)};
  }
  /// Called at the beginning of every replay; throws Error where one cannot be. It must not change
  /// anything: another's may still throw.
  void check_replay(std::function<void()> f);
  /// Called in every replay after all checks, in the order of these calls.
  void before_replay(std::function<void()> f);
  /// The stream of random numbers of a layer, by the step of the replay; `at` is of the capture.
  const std::uint64_t* random_stream(std::uint64_t layer_stream, const RandomState& at);

 private:
  struct State;
  struct Place {
    void* host;
    void* device;
  };
  Place place_value(std::size_t bytes);

  class Recording {
   public:
    explicit Recording(Graph& graph);
    ~Recording();  // gives the capture up unless finished
    void finish();

   private:
    Graph& graph_;
    bool open_ = true;
  };

  std::unique_ptr<State> state_;
};

namespace detail {

/// Throws Error with `text` while this thread captures.
void refuse_in_capture(const char* text);

}  // namespace detail
}  // namespace weft::cuda
