#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace weft::test {

/// Writes a new file in place of an old one. To replace the content of the old file would take
/// longer: ext4 writes it to the disk at once.
inline void write_anew(const std::string& path, const std::string& content) {
  std::remove(path.c_str());
  std::ofstream(path, std::ios::binary) << content;
}

/// Damaged copies of a text or file. The same seed gives the same copies.
class Mutations {
 public:
  explicit Mutations(std::uint64_t seed) : state_(seed * 2 + 1) {}

  /// Makes one to four changes: flips a bit, replaces a byte, removes or repeats a range, truncates
  /// an end, or replaces a number.
  std::string of(std::string text) {
    for (std::uint64_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes)
      change(text);
    return text;
  }
  /// In [0, n).
  std::uint64_t below(std::uint64_t n) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state_ >> 33) % n;
  }

 private:
  void change(std::string& text) {
    static constexpr const char* kNumbers[] = {"0",
                                               "1",
                                               "-1",
                                               "1e999",
                                               "0.5",
                                               "4294967296",
                                               "1125899906842624",
                                               "9223372036854775807",
                                               "-9223372036854775808",
                                               "18446744073709551615",
                                               "99999999999999999999999"};
    static constexpr const char* kWords[] = {"[]", "{}", "null",    "\"",
                                             "[[", ",",  "\\u0000", "true"};
    const std::size_t at = below(text.size());
    const std::size_t length = std::min<std::size_t>(1 + below(24), text.size() - at);
    switch (below(8)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size()), text.substr(at, length));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.insert(at, kWords[below(std::size(kWords))]);
        break;
      default: {  // the next number after `at`
        const std::size_t first = text.find_first_of("0123456789", at);
        if (first == std::string::npos) break;
        const std::size_t end = text.find_first_not_of("0123456789", first);
        text.replace(first, std::min(end, text.size()) - first,
                     kNumbers[below(std::size(kNumbers))]);
      }
    }
  }

  std::uint64_t state_;
};

}  // namespace weft::test
