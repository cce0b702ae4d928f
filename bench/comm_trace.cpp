#include "weft/bench/comm_trace.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::bench {
namespace {

using distributed::Ddp;
using distributed::FlightEntry;
using train::Phase;

constexpr int kRecorded = 1 << 17;

struct Mark {
  double time;
  Phase phase;
};

// A part of a step, with its share of the compute.
struct Segment {
  double begin_time, end_time;
  double begin_share, end_share;
  Phase phase;
  bool last;  // last segment of its phase
};

std::vector<Segment> segments_of(const std::vector<Mark>& marks, double end_time, bool recomputes) {
  const auto passes = static_cast<double>(std::count_if(
      marks.begin(), marks.end(), [](const Mark& m) { return m.phase == Phase::forward; }));
  const double forward = (recomputes ? 1.0 / 4 : 1.0 / 3) / passes;
  std::vector<Segment> segments;
  double share = 0;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    Segment s{.begin_time = marks[i].time,
              .end_time = i + 1 < marks.size() ? marks[i + 1].time : end_time,
              .begin_share = share,
              .end_share = 1,
              .phase = marks[i].phase,
              .last = i + 2 >= marks.size()};
    if (s.phase == Phase::forward) s.end_share = share + forward;
    if (s.phase == Phase::backward) s.end_share = share + 1 / passes - forward;
    if (s.phase == Phase::update) s.begin_share = 1;
    share = s.end_share;
    segments.push_back(s);
  }
  return segments;
}

// The share of a pass through the model that a bucket's parameters account for: their products per
// token of this rank.
double work_of(const Ddp& ddp, const Ddp::Bucket& b, const nn::GptConfig& model,
               const distributed::Degrees& d) {
  const double rows = static_cast<double>(model.moe.router.route.topk * d.ep * d.etp) /
                      static_cast<double>(d.tp * std::max<std::int64_t>(model.moe.experts, 1));
  double work = 0;
  for (const distributed::BucketEntry& e : b.layout.entries) {
    const std::string& name = ddp.parameters()[e.parameter].name;
    const bool looked_up =
        name.starts_with("positions.") || (name.starts_with("embed.") && !model.tied());
    if (!looked_up) work += static_cast<double>(e.size) * (b.layout.expert ? rows : 1);
  }
  return work;
}

// Positions within one segment: events without a known position are spread evenly between the
// others.
void spread(std::vector<double>& places) {
  std::size_t from = 0;
  double before = 0;
  for (std::size_t i = 0; i <= places.size(); ++i) {
    if (i < places.size() && places[i] < 0) continue;
    const double here = i < places.size() ? std::max(before, places[i]) : 1;
    const auto gaps = static_cast<double>(i - from + 1);
    for (std::size_t k = from; k < i; ++k)
      places[k] = before + (here - before) * static_cast<double>(k - from + 1) / gaps;
    if (i < places.size()) places[i] = here;
    before = here;
    from = i + 1;
  }
}

/// Orders the events of one step and assigns their compute shares.
class Placing {
 public:
  Placing(StepTrace& trace, const std::vector<FlightEntry>& earlier,
          const std::vector<Segment>& segments)
      : trace_(trace), segments_(segments) {
    const double begin = segments.front().begin_time, end = segments.back().end_time;
    for (std::size_t i = 0; i < trace.calls.size(); ++i) {
      const FlightEntry& e = trace.calls[i];
      const int op = static_cast<int>(i);
      timed_.push_back({e.called_s, {.op = op}});
      if (e.waited_s > 0 && e.waited_s < end)
        timed_.push_back({e.waited_s, {.kind = StepEvent::Kind::wait, .op = op}});
      const double before = earlier[i].waited_s;
      if (before >= begin && before < end)
        timed_.push_back({before, {.kind = StepEvent::Kind::wait, .op = op, .earlier = true}});
      trace.phases.push_back(segment_at(e.called_s).phase);
    }
    std::stable_sort(timed_.begin(), timed_.end(),
                     [](const Timed& a, const Timed& b) { return a.time < b.time; });
  }

  // `bucket_ends`: for the bucket collectives of the last backward, in order, the fraction of
  // backward done when they start; `needed`: for each bucket, the fraction of forward done when its
  // parameters are needed.
  void place(const std::vector<double>& bucket_ends, const std::vector<double>& needed) {
    std::size_t at = 0, bucket = 0, portion = 0;
    for (const Segment& s : segments_) {
      std::vector<double> places;
      std::vector<std::size_t> point_of;
      const std::size_t first = at;
      for (; at < timed_.size() && timed_[at].time < s.end_time; ++at) {
        const StepEvent& e = timed_[at].event;
        const bool at_once = at > first && e.kind == StepEvent::Kind::wait && !e.earlier &&
                             timed_[at - 1].event.kind == StepEvent::Kind::call &&
                             timed_[at - 1].event.op == e.op;
        if (!at_once) places.push_back(-1);
        point_of.push_back(places.size() - 1);
        if (is_bucket(e, s) && bucket < bucket_ends.size()) places.back() = bucket_ends[bucket++];
        if (e.earlier && s.phase == Phase::forward && portion < needed.size())
          places.back() = needed[portion++];
      }
      spread(places);
      for (std::size_t i = first; i < at; ++i) {
        StepEvent e = timed_[i].event;
        e.share = s.begin_share + (s.end_share - s.begin_share) * places[point_of[i - first]];
        trace_.events.push_back(e);
      }
    }
    check(bucket == bucket_ends.size(), "comm_trace: {} collectives of buckets expected, {} seen",
          bucket_ends.size(), bucket);
  }

 private:
  struct Timed {
    double time;
    StepEvent event;
  };
  const Segment& segment_at(double time) const {
    for (const Segment& s : segments_)
      if (time < s.end_time) return s;
    return segments_.back();
  }
  // Started in the last backward, waited for after it.
  bool is_bucket(const StepEvent& e, const Segment& s) const {
    return s.phase == Phase::backward && s.last && e.kind == StepEvent::Kind::call &&
           trace_.calls[static_cast<std::size_t>(e.op)].waited_s >= s.end_time;
  }

  StepTrace& trace_;
  const std::vector<Segment>& segments_;
  std::vector<Timed> timed_;
};

}  // namespace

std::vector<FlightEntry> record_step(distributed::World& world, train::TrainStep& train_step,
                                     std::int64_t step, const data::Batch& rows) {
  const std::int64_t before = world.recorder().count();
  train_step(step, rows);
  const std::vector<FlightEntry> all = world.recorder().entries();
  const std::int64_t calls = world.recorder().count() - before;
  check(calls <= static_cast<std::int64_t>(all.size()),
        "record_step: the step made {} collectives, but the world keeps {}", calls, all.size());
  return {all.end() - calls, all.end()};
}

std::int64_t whole_bytes(const FlightEntry& e) {
  const bool gathers = e.kind == distributed::Collective::all_gather;
  return static_cast<std::int64_t>(size_of(e.dtype)) *
         (gathers || e.in_elements == 0 ? e.out_elements : e.in_elements);
}

StepTrace trace_step(const examples::GptOptions& options) {
  const int size = train::ranks_of(options);
  check(size > 1, "--dp, --tp, --ranks: must be at least 2 ranks, which have collectives, got {}",
        size);
  const auto world = distributed::fake_world(static_cast<int>(options.parallel.rank), size,
                                             {.recorded = kRecorded});
  const train::Ranks ranks(*world, options);
  examples::GptTask gpt(options);
  train::TrainStep train_step(gpt.task(), options, ranks);
  const Tensor ids = Tensor::empty({ranks.rows(), options.model.seq}, DType::i32, kMeta);
  const data::Batch rows{ids, ids};
  const distributed::FlightRecorder& recorder = world->recorder();
  train_step(1, rows);
  const auto calls_of_second =
      static_cast<std::ptrdiff_t>(record_step(*world, train_step, 2, rows).size());
  std::vector<Mark> marks;
  train_step.on_phase([&](Phase phase) { marks.push_back({recorder.now(), phase}); });
  StepTrace trace;
  trace.calls = record_step(*world, train_step, 3, rows);
  const double end = recorder.now();
  train_step.on_phase({});

  // A snapshot after the third step, which has waited for collectives of the second.
  const std::vector<FlightEntry> all = recorder.entries();
  const auto calls = static_cast<std::ptrdiff_t>(trace.calls.size());
  check(calls == calls_of_second && std::ssize(all) >= 2 * calls,
        "comm_trace: two steps must make the same collectives, got {} and {}", calls_of_second,
        calls);
  const std::vector<FlightEntry> earlier(all.end() - 2 * calls, all.end() - calls);

  const distributed::DeviceMesh& mesh = ranks.mesh();
  for (const FlightEntry& e : trace.calls)
    trace.groups[e.group] =
        e.group == std::string("world") ? world->all().ranks() : mesh.group(e.group).ranks();
  const nn::GptConfig model = options.gpt();
  const Ddp& ddp = *train_step.optimizer().ddp();
  std::vector<double> done{0};  // fraction of a pass after each bucket
  for (const Ddp::Bucket& b : ddp.buckets())
    done.push_back(done.back() + work_of(ddp, b, model, mesh.degrees()));
  std::vector<double> bucket_ends, needed;
  for (std::size_t i = 0; i < ddp.buckets().size(); ++i)
    for (std::size_t n = 0; n <= ddp.buckets()[i].then.size(); ++n)
      bucket_ends.push_back(done[i + 1] / done.back());
  // Forward visits the buckets in reverse order.
  for (std::size_t i = ddp.buckets().size(); i > 0; --i)
    needed.push_back(1 - done[i] / done.back());

  const bool recomputes = options.model.recompute == nn::Recompute::full;
  const std::vector<Segment> segments = segments_of(marks, end, recomputes);
  Placing placing(trace, earlier, segments);
  // Gathers and sums of units have their order; they are spread evenly.
  if (options.parallel.fsdp)
    placing.place({}, {});
  else
    placing.place(bucket_ends, options.parallel.zero ? needed : std::vector<double>{});
  trace.tokens = options.batch * options.model.seq;
  trace.flops = model.flops_per_token() * static_cast<double>(trace.tokens) / size *
                (recomputes ? 4.0 / 3 : 1);
  return trace;
}

}  // namespace weft::bench
