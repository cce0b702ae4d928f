#pragma once

namespace weft {

class Tape;

/// An entry in this thread's stack of tapes and guards; the top entry decides which tape records.
/// Heap-allocated entries may be destroyed in any order.
class TapeScope {
 public:
  TapeScope(const TapeScope&) = delete;

 protected:
  explicit TapeScope(Tape* records, bool is_tape = false)
      : below_(top_), records_(records), is_tape_(is_tape) {
    top_ = this;
  }
  ~TapeScope() {
    if (top_ == this)
      top_ = below_;
    else
      unlink();
  }

 private:
  friend class Tape;
  void unlink();
  TapeScope* below_;
  Tape* records_;  ///< the tape that records while this entry is on top, or null
  bool is_tape_;
  static constinit thread_local TapeScope* top_;
};

/// Disables recording on this thread until the end of the scope.
class NoGradGuard : public TapeScope {
 public:
  NoGradGuard() : TapeScope(nullptr) {}
};

}  // namespace weft
