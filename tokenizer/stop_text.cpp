#include "weft/tokenizer/stop_text.h"

#include <algorithm>
#include <utility>

#include "weft/core/error.h"

namespace weft::tokenizer {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& s : stops_) check(!s.empty(), "stop_text: a string must not be empty");
}

std::string StopText::next(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // The one that is complete first, as if the text came byte by byte; of several the longest.
  std::size_t first = std::string::npos, end = std::string::npos;
  for (const std::string& s : stops_) {
    const std::size_t at = held_.find(s);
    if (at == std::string::npos || std::pair(at + s.size(), at) >= std::pair(end, first)) continue;
    first = at;
    end = at + s.size();
  }
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }
  // The longest end of the text that begins one of the strings.
  std::size_t keep = 0;
  for (const std::string& s : stops_)
    for (std::size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace weft::tokenizer
