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

/// GPU work that is recorded once and then launched again with a single call. A training step has
/// hundreds of kernels, and each launch costs the host microseconds.
///
///   cuda::Graph graph;
///   graph.capture([&] {  // after one or two eager steps, which create lazy state
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
/// A replay launches the recorded kernels on the recorded memory and gives the same bits as running
/// the work again. These may change between replays: the values of tensors (copy into them; shapes
/// are fixed), the learning rate, the optimizer's update count and with it Adam's bias corrections,
/// and the step of the RandomScope in which replay() is called. The seed of that scope must be the
/// seed of the capture; micro-batch, first row and offset stay as captured.
///
/// These throw Error inside a capture, and the capture is abandoned: waiting for a GPU or reading a
/// value (nothing runs before replay()), copies from the host, random numbers without a
/// RandomScope, events, other streams.
///
/// The graph owns memory that is allocated during the capture until the graph is destroyed, and
/// also older blocks that are freed during the capture. Tensors created inside hold the results:
/// each replay writes new values into them. Tensors created outside and used inside (parameters,
/// optimizer state, inputs) must outlive the graph and keep their memory.
class Graph {
 public:
  /// Captures on, and replays into, the stream of the device that is current on the calling thread
  /// now.
  explicit Graph(Device device = {Device::Kind::cuda, 0});
  /// Waits for the last replay.
  ~Graph();
  Graph(const Graph&) = delete;

  /// Runs `work` once and records its kernels instead of executing them. First returns the device's
  /// cached memory to the system, since the graph gets a pool of its own.
  /// Throws Error when the graph's stream is not the current one.
  template <class F>
  void capture(F&& work) {
    Recording recording(*this);
    std::forward<F>(work)();
    recording.finish();
  }
  bool captured() const;
  /// Launches the graph on its own stream, whatever the current one is. The host does not wait.
  void replay();

  /// The graph that this thread is capturing, or null.
  static Graph* capturing();

  // For ops, inside a capture.

  /// Copies `bytes` to the device once, before the first replay, and returns their address there.
  const void* constant(const void* data, std::int64_t bytes);
  /// A value on the device that each replay reads from the host at the time of the replay.
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
  /// Calls `f` at the beginning of every replay; `f` throws Error where the replay is not allowed.
  /// It must not change anything, because a later check may still throw.
  void check_replay(std::function<void()> f);
  /// Calls `f` in every replay after all checks, in the order of registration.
  void before_replay(std::function<void()> f);
  /// The random stream of a layer at the step of the replay; `at` is the state of the capture.
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
    ~Recording();  // abandons the capture unless finished
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
