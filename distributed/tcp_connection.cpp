#include "weft/distributed/tcp_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr std::size_t kBuffer = 256 << 10;
// After so many bytes the other connections have their turn.
constexpr std::int64_t kTurn = 4 << 20;

using FrameKind = TcpFrame::Kind;

std::string with_frame(const TcpFrame& frame, const void* data = nullptr, std::size_t bytes = 0) {
  std::string all(sizeof frame + bytes, '\0');
  std::memcpy(all.data(), &frame, sizeof frame);
  if (bytes > 0) std::memcpy(all.data() + sizeof frame, data, bytes);
  return all;
}

bool is_of(int queue, int batch) { return batch >= 0 && batch / Messages::kBatches == queue; }

template <class List, class Is>
auto find(List& list, Is is) {
  return std::find_if(list.begin(), list.end(), is);
}

}  // namespace

TcpConnection::TcpConnection(Socket socket, int peer, Counts& counts)
    : socket_(std::move(socket)), peer_(peer), counts_(counts), buffer_(kBuffer) {}

void TcpConnection::send(int tag, const void* data, std::int64_t bytes, int batch) {
  if (bytes <= kTcpSmall) {  // is copied, and so has ended
    const TcpFrame frame{FrameKind::small, tag, 0, bytes};
    out_.push_back({.head = with_frame(frame, data, static_cast<std::size_t>(bytes))});
    counts_.of_batch(batch).moved = true;
  } else {
    const TcpFrame frame{FrameKind::offer, tag, next_id_++, bytes};
    offered_.push_back({frame.id, static_cast<const char*>(data), bytes, batch});
    out_.push_back({.head = with_frame(frame)});
    ++counts_.batch[batch];
  }
  write();
}

void TcpConnection::receive(int tag, void* data, std::int64_t bytes, int batch) {
  ++counts_.batch[batch];
  const Expected expected{tag, static_cast<char*>(data), bytes, batch};
  const auto came = find(arrived_, [&](const Arrived& a) { return a.frame.tag == tag; });
  if (came == arrived_.end()) {
    expected_.push_back(expected);
    return;
  }
  meet(expected, *came);
  arrived_.erase(came);
  write();
}

void TcpConnection::tell(const Note& note) {
  const TcpFrame frame{FrameKind::note, 0, 0, sizeof note};
  out_.push_back({.head = with_frame(frame, &note, sizeof note)});
  write();
}

bool TcpConnection::is_busy(int queue) const {
  const auto any = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& m) { return is_of(queue, m.batch); });
  };
  return any(expected_) || any(accepted_) || any(offered_) || any(out_) ||
         is_of(queue, into_.batch);
}

void TcpConnection::abandon(int queue) {
  has_abandoned_ = true;
  const auto is_its = [&](const auto& m) { return is_of(queue, m.batch); };
  std::erase_if(expected_, is_its);
  std::erase_if(accepted_, is_its);
  std::erase_if(offered_, is_its);
  if (is_its(into_)) {
    target_ = nullptr;
    into_.batch = -1;
  }
  // The other side expects the rest of what has begun to leave.
  const bool begun = !out_.empty() && out_.front().done > 0;
  for (auto s = out_.begin() + begun; s != out_.end();)
    s = s->data && is_its(*s) ? out_.erase(s) : std::next(s);
  if (!begun || !is_its(out_.front())) return;
  Sent& first = out_.front();
  first.batch = -1;
  if (!first.data) return;
  first.head.append(first.data, static_cast<std::size_t>(first.bytes));
  first.data = nullptr;
  first.bytes = 0;
}

void TcpConnection::end_output() {
  if (is_open()) ::shutdown(socket_.fd(), SHUT_WR);
}

void TcpConnection::pump(std::deque<Note>& notes) {
  write();
  read();
  for (Note& note : heard_) notes.push_back(note);
  heard_.clear();
}

void TcpConnection::ended(int batch) {
  if (batch < 0) return;
  --counts_.batch[batch];
  counts_.of_batch(batch).moved = true;
}

void TcpConnection::close(const char* why) {
  socket_.close();
  out_.clear();
  Note note{.kind = Note::Kind::lost, .from = peer_};
  note.set_text(why);
  heard_.push_back(note);
}

void TcpConnection::write() {
  if (!is_open() || is_deaf_) return out_.clear();
  while (!out_.empty()) {
    Sent& s = out_.front();
    const auto head = static_cast<std::int64_t>(s.head.size());
    while (s.done < head + s.bytes) {
      const bool in_head = s.done < head;
      const char* const from = in_head ? s.head.data() + s.done : s.data + (s.done - head);
      const std::int64_t left = (in_head ? head : head + s.bytes) - s.done;
      const std::int64_t n = send_some(socket_, from, static_cast<std::size_t>(left));
      if (n == 0) return;
      if (n < 0) {  // its last words may still be there to be read
        is_deaf_ = true;
        return out_.clear();
      }
      s.done += n;
      if (s.batch >= 0) counts_.of_batch(s.batch).moved = true;
    }
    ended(s.batch);
    out_.pop_front();
  }
}

// Receives into the buffer; false if nothing came.
bool TcpConnection::fill() {
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  const std::int64_t n = receive_some(socket_, buffer_.data() + end_, buffer_.size() - end_);
  if (n < 0) close("its connection was closed");
  end_ += static_cast<std::size_t>(std::max<std::int64_t>(n, 0));
  return n > 0;
}

void TcpConnection::read() {
  for (std::int64_t read = 0; is_open() && read < kTurn;) {
    if (in_message_) {
      const std::int64_t before = left_;
      if (!receive_body()) return;
      read += before;
    } else if (end_ - begin_ >= sizeof(TcpFrame)) {
      TcpFrame frame;
      std::memcpy(&frame, buffer_.data() + begin_, sizeof frame);
      begin_ += sizeof frame;
      take(frame);
    } else if (!fill()) {
      return;
    }
  }
}

void TcpConnection::take(const TcpFrame& frame) {
  const auto is_id = [&](const auto& e) { return e.id == frame.id; };
  const auto has_tag = [&](const Expected& e) { return e.tag == frame.tag; };
  frame_ = frame;
  into_ = {.batch = -1};
  target_ = nullptr;
  switch (frame.kind) {
    case FrameKind::small: {
      if (frame.bytes <= 0 || frame.bytes > kTcpSmall) break;
      const auto e = find(expected_, has_tag);
      if (e != expected_.end() && e->bytes == frame.bytes) {
        into_ = *e;
        target_ = e->data;
        expected_.erase(e);
      } else {
        own_.resize(static_cast<std::size_t>(frame.bytes));
        target_ = own_.data();
      }
      left_ = frame.bytes;
      in_message_ = true;
      return;
    }
    case FrameKind::offer: {
      if (frame.bytes <= kTcpSmall) break;
      const Arrived offer{frame, {}};
      const auto e = find(expected_, has_tag);
      if (e == expected_.end()) {
        arrived_.push_back(offer);
        return;
      }
      const Expected expected = *e;
      expected_.erase(e);
      meet(expected, offer);
      return write();
    }
    case FrameKind::accept: {
      const auto o = find(offered_, is_id);
      if (o == offered_.end()) {
        if (has_abandoned_) return;
        break;
      }
      out_.push_back({.head = with_frame({FrameKind::large, 0, o->id, o->bytes}),
                      .data = o->data,
                      .bytes = o->bytes,
                      .batch = o->batch});
      offered_.erase(o);
      return write();
    }
    case FrameKind::large: {
      const auto a = find(accepted_, is_id);
      if (a != accepted_.end() && a->bytes == frame.bytes) {
        into_ = *a;
        target_ = a->data;
        accepted_.erase(a);
      } else if (!has_abandoned_ || frame.bytes < 0) {
        break;
      }
      left_ = frame.bytes;
      in_message_ = true;
      return;
    }
    case FrameKind::note:
      if (frame.bytes != sizeof(Note)) break;
      own_.resize(sizeof(Note));
      target_ = own_.data();
      left_ = frame.bytes;
      in_message_ = true;
      return;
  }
  close("it sent what is no message of Weft");
}

// The rest of a message; false if more is to come.
bool TcpConnection::receive_body() {
  while (left_ > 0) {
    std::int64_t n = static_cast<std::int64_t>(end_ - begin_);
    if (n > 0 || !target_) {
      if (n == 0 && !fill()) return false;
      n = std::min(left_, static_cast<std::int64_t>(end_ - begin_));
      if (target_) std::memcpy(target_, buffer_.data() + begin_, static_cast<std::size_t>(n));
      begin_ += static_cast<std::size_t>(n);
    } else {
      n = receive_some(socket_, target_, static_cast<std::size_t>(left_));
      if (n < 0) close("its connection was closed");
      if (n <= 0) return false;
    }
    if (target_) target_ += n;
    left_ -= n;
    if (into_.batch >= 0) counts_.of_batch(into_.batch).moved = true;
  }
  in_message_ = false;
  end_message();
  return true;
}

void TcpConnection::end_message() {
  if (frame_.kind == FrameKind::note) {
    Note note;
    std::memcpy(&note, own_.data(), sizeof note);
    note.from = peer_;
    note.text[sizeof note.text - 1] = 0;
    if (note.kind >= Note::Kind::ask && note.kind < Note::Kind::lost) heard_.push_back(note);
    return;
  }
  if (into_.batch >= 0 || frame_.kind == FrameKind::large)
    return ended(std::exchange(into_.batch, -1));
  // Nobody expected it when it began to come.
  if (has_abandoned_) return;
  const Arrived arrived{frame_, own_};
  const auto e = find(expected_, [&](const Expected& x) { return x.tag == frame_.tag; });
  if (e == expected_.end()) {
    arrived_.push_back(arrived);
    return;
  }
  const Expected expected = *e;
  expected_.erase(e);
  meet(expected, arrived);
}

// Gives a message to what expects it.
void TcpConnection::meet(const Expected& expected, const Arrived& arrived) {
  const TcpFrame& frame = arrived.frame;
  if (frame.bytes != expected.bytes)
    counts_.of_batch(expected.batch).trouble = message(
        "a message of rank {} had {} bytes instead of {}", peer_, frame.bytes, expected.bytes);
  else if (frame.kind == FrameKind::offer)
    return accept(expected, frame.id);
  else
    std::memcpy(expected.data, arrived.data.data(), arrived.data.size());
  ended(expected.batch);
}

void TcpConnection::accept(const Expected& expected, std::int64_t id) {
  accepted_.push_back(expected);
  accepted_.back().id = id;
  out_.push_back({.head = with_frame({FrameKind::accept, 0, id, 0})});
}

}  // namespace weft::distributed
