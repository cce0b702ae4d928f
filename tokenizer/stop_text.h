#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace weft::tokenizer {

/// Ends a stream of text at the first of some strings that is complete, the longest if several end
/// at the same place; it is not part of the result. The pieces in which the text comes do not
/// matter. Text that may be the beginning of one is held until more text decides.
///
///   StopText stop({"\n\n", "User:"});
///   while (!stop.stopped()) std::cout << stop.next(stream.next(token()));
///   std::cout << stop.finish();
class StopText {
 public:
  /// Throws  Error on an empty string
  explicit StopText(std::vector<std::string> stops);
  /// What is now known to come before the first of the strings. Empty once stopped.
  std::string next(std::string_view text);
  /// The text that was held, when no more follows.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace weft::tokenizer
