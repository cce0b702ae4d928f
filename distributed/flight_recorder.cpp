#include "weft/distributed/flight_recorder.h"

#include <algorithm>
#include <cstring>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::distributed {
namespace {

const char* name(FlightEntry::State s) {
  constexpr const char* kNames[] = {"queued", "running", "enqueued", "done", "failed"};
  return kNames[static_cast<int>(s)];
}

}  // namespace

std::string FlightEntry::text() const {
  const bool reduces = kind == Collective::all_reduce || kind == Collective::reduce_scatter;
  constexpr const char* kReduces[] = {" sum", " max", " min"};
  return message("{} {} of group {}{} {}", distributed::name(kind), sequence, group,
                 reduces ? kReduces[static_cast<int>(reduce)] : "", weft::name(dtype));
}

std::string FlightEntry::text_with_shape() const {
  return kind == Collective::barrier ? text() : message("{} {}", text(), shape);
}

FlightRecorder::FlightRecorder(int capacity) : start_(std::chrono::steady_clock::now()) {
  check(capacity > 0, "flight recorder: capacity must be at least 1, got {}", capacity);
  ring_.resize(static_cast<std::size_t>(capacity));
}

double FlightRecorder::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::int64_t FlightRecorder::called(const Operation& op) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(count_) % ring_.size()];
  e = {};
  e.number = count_;
  e.sequence = op.sequence;
  e.kind = op.kind;
  e.reduce = op.reduce;
  e.lane = op.lane;
  e.dtype = op.dtype();
  std::strncpy(e.group, op.channel->name().c_str(), sizeof e.group - 1);
  e.out_elements = op.out.defined() ? op.out.numel() : 0;
  e.in_elements = op.in.defined() ? op.in.numel() : 0;
  for (const Transfer& t : op.receives) e.out_elements += t.tensor.numel();
  for (const Transfer& t : op.sends) e.in_elements += t.tensor.numel();
  if (const Tensor& t = op.some_tensor(); t.defined()) e.shape = t.shape();
  e.bytes_sent = op.bytes_sent(op.channel->rank(), op.channel->size());
  e.called_s = now();
  return count_++;
}

void FlightRecorder::started(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(number) % ring_.size()];
  if (e.number != number) return;  // overwritten by later entries
  e.state = FlightEntry::State::running;
  e.started_s = now();
}

void FlightRecorder::enqueued(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(number) % ring_.size()];
  // The GPU may already have ended it.
  if (e.number == number && e.state == FlightEntry::State::running)
    e.state = FlightEntry::State::enqueued;
}

void FlightRecorder::ended(std::int64_t number, bool well) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(number) % ring_.size()];
  if (e.number != number) return;
  e.state = well ? FlightEntry::State::done : FlightEntry::State::failed;
  e.ended_s = now();
}

void FlightRecorder::waited(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  FlightEntry& e = ring_[static_cast<std::size_t>(number) % ring_.size()];
  if (e.number == number) e.waited_s = now();
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightEntry> list;
  const auto size = static_cast<std::int64_t>(ring_.size());
  for (std::int64_t n = std::max<std::int64_t>(0, count_ - size); n < count_; ++n)
    list.push_back(ring_[static_cast<std::size_t>(n % size)]);
  return list;
}

std::int64_t FlightRecorder::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

std::string FlightRecorder::dump() const {
  std::string text;
  for (const FlightEntry& e : entries())
    text += message("{} {} out {} in {} {} called {} started {} ended {} lane {}\n", e.number,
                    e.text(), e.out_elements, e.in_elements, name(e.state), e.called_s, e.started_s,
                    e.ended_s, distributed::name(e.lane));
  return text;
}

void FlightRecorder::write(const std::string& folder, int rank, const std::string& why) const {
  const std::lock_guard lock(write_mutex_);
  try {
    io::make_directories(folder);
    io::write_file(message("{}/rank_{}.txt", folder, rank), why + "\n" + dump());
  } catch (const Error& e) {
    log_line(e.what());
  }
}

namespace {

template <class Wanted>
std::vector<std::string> trace_of(const FlightRecorder& recorder, Wanted wanted) {
  std::vector<std::string> texts;
  for (const FlightEntry& e : recorder.entries())
    if (!is_message(e.kind) && wanted(e)) texts.push_back(e.text());
  return texts;
}

}  // namespace

std::vector<std::string> collective_trace(const FlightRecorder& recorder) {
  return trace_of(recorder, [](const FlightEntry&) { return true; });
}

std::vector<std::string> collective_trace(const FlightRecorder& recorder, Lane lane) {
  return trace_of(recorder, [lane](const FlightEntry& e) { return e.lane == lane; });
}

}  // namespace weft::distributed
