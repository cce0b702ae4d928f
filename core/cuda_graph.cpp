#include "weft/core/cuda_graph.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/random.h"
#include "weft/core/shared_cache.h"
#include "weft/core/staging.h"

namespace weft::cuda {
namespace {

constinit thread_local Graph* current = nullptr;

}  // namespace

// Device memory of a graph with a host copy of its contents.
class GraphArea {
 public:
  explicit GraphArea(Device device) : device_(device) {}
  /// Call only after the graph has finished.
  void free() {
    for (Chunk& c : chunks_)
      if constexpr (kWithCuda) rt::free(c.device);
    chunks_.clear();
  }
  GraphArea(const GraphArea&) = delete;

  std::pair<char*, char*> place(std::int64_t bytes) {
    constexpr std::int64_t kChunk = 64 << 10, kAlign = 16;
    if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().room) {
      Chunk c{nullptr, nullptr, 0, std::max(kChunk, bytes)};
      c.device = static_cast<char*>(detail::allocate_uncached(device_, c.room));
      check_system(c.device != nullptr, "graph: no memory for a table of {} bytes", c.room);
      c.host = std::make_unique<char[]>(static_cast<std::size_t>(c.room));
      chunks_.push_back(std::move(c));
    }
    Chunk& c = chunks_.back();
    const std::int64_t at = c.used;
    c.used += (bytes + kAlign - 1) / kAlign * kAlign;
    return {c.host.get() + at, c.device + at};
  }
  /// Marks the memory as usable by kernels. Called once, outside captures.
  void mark_usable(const Stream& stream) const {
    for (const Chunk& c : chunks_)
      if constexpr (kWithCuda) rt::mark_usable(c.device, c.room, c.room, stream.handle());
  }
  void upload(const Stream& stream) const {
    for (const Chunk& c : chunks_)
      detail::upload(c.device, c.host.get(), std::min(c.used, c.room), stream);
  }

 private:
  struct Chunk {
    char* device;
    std::unique_ptr<char[]> host;
    std::int64_t used, room;
  };
  const Device device_;
  std::vector<Chunk> chunks_;
};

struct Graph::State {
  explicit State(const Stream& s) : stream(s), constants(s.device()), values(s.device()) {}
  Stream stream;
  rt::GraphHandle handle = nullptr;
  weft::detail::SharedCache* pool = nullptr;
  GraphArea constants, values;
  std::vector<std::function<void()>> checks, before;
  struct RandomStream {
    std::uint64_t* now;
    std::uint64_t layer, micro_batch, seed;
  };
  std::vector<RandomStream> random;

  ~State() {
    try {
      detail::use_device(stream.device().index);
      if constexpr (kWithCuda)
        if (handle) {
          rt::synchronize_stream(stream.handle());
          rt::destroy_graph(handle);
        }
      constants.free();
      values.free();
      if (pool) pool->retire();
    } catch (const Error& e) {  // the device failed: its memory is lost
      log_line(e.what());
    }
  }
};

Graph::Graph(Device device) : state_(new State(Stream::current(device))) {}
Graph::~Graph() = default;

bool Graph::captured() const { return state_->handle != nullptr; }
Graph* Graph::capturing() { return current; }

Graph::Recording::Recording(Graph& graph) : graph_(graph) {
  check(current == nullptr, "graph: a capture cannot begin inside another");
  const Stream stream = graph.state_->stream;
  check(Stream::current(stream.device()) == stream,
        "graph: capture() must run on the stream on which the graph was created, got another "
        "current stream of {}",
        stream.device());
  release_cached_memory(stream.device());
  graph.state_ = std::make_unique<State>(stream);
  detail::use_device(stream.device().index);
  if constexpr (kWithCuda) rt::begin_capture(stream.handle());
  graph.state_->pool = weft::detail::SharedCache::begin_pool(stream);
  current = &graph;
}

void Graph::Recording::finish() {
  State& s = *graph_.state_;
  open_ = false;
  current = nullptr;
  weft::detail::SharedCache::end_pool();
  detail::use_device(s.stream.device().index);
  if constexpr (kWithCuda) s.handle = rt::end_capture(s.stream.handle());
  s.constants.mark_usable(s.stream);
  s.values.mark_usable(s.stream);
  s.constants.upload(s.stream);
}

Graph::Recording::~Recording() {
  if (!open_) return;
  State& s = *graph_.state_;
  current = nullptr;
  weft::detail::SharedCache::end_pool();
  try {
    detail::use_device(s.stream.device().index);
    if constexpr (kWithCuda) rt::destroy_graph(rt::end_capture(s.stream.handle()));
  } catch (const Error&) {
    // The error that broke the capture is already being thrown.
  }
  graph_.state_ = std::make_unique<State>(s.stream);
}

void Graph::replay() {
  detail::refuse_in_capture("graph: replay() cannot be called inside a capture");
  check(captured(), "graph: replay() needs a capture() before it");
  State& s = *state_;
  const RandomState* const random = RandomScope::current();
  check(s.random.empty() || random,
        "graph: replay() needs a RandomScope, since random layers were captured in one");
  for (const auto& r : s.random)
    check(r.seed == random->seed,
          "graph: replay() needs a RandomScope with the seed of the capture {}, got {}", r.seed,
          random->seed);
  const StreamScope in(s.stream);
  for (const auto& f : s.checks) f();
  for (const auto& f : s.before) f();
  for (const auto& r : s.random)
    *r.now = RandomScope::stream_for(r.layer, random->step, r.micro_batch);
  detail::use_device(s.stream.device().index);
  s.values.upload(s.stream);
  if constexpr (kWithCuda) rt::launch_graph(s.handle, s.stream.handle());
}

const void* Graph::constant(const void* data, std::int64_t bytes) {
  const auto [host, device] = state_->constants.place(bytes);
  if (bytes > 0) std::memcpy(host, data, static_cast<std::size_t>(bytes));
  return device;
}

Graph::Place Graph::place_value(std::size_t bytes) {
  const auto [host, device] = state_->values.place(static_cast<std::int64_t>(bytes));
  return {host, device};
}

void Graph::check_replay(std::function<void()> f) { state_->checks.push_back(std::move(f)); }
void Graph::before_replay(std::function<void()> f) { state_->before.push_back(std::move(f)); }

const std::uint64_t* Graph::random_stream(std::uint64_t layer_stream, const RandomState& at) {
  const auto v = varying<std::uint64_t>();
  state_->random.push_back({v.host, layer_stream, at.micro_batch, at.seed});
  return v.device;
}

void detail::refuse_in_capture(const char* text) { check(current == nullptr, "{}", text); }

}  // namespace weft::cuda
