#pragma once
#include <memory>
#include <string>

namespace weft {

/// A regular expression (ECMAScript) for names. Threads may share a pattern, and ranks that are
/// threads may make patterns concurrently.
class Pattern {
 public:
  /// Throws: Error that starts with `op` if the text is not a regular expression.
  Pattern(const char* op, const std::string& text);

  /// Whether the pattern describes the whole name.
  bool matches(const std::string& name) const;
  /// Whether the pattern describes a part of the name.
  bool is_found_in(const std::string& name) const;

 private:
  // <regex> takes a second to compile: only pattern.cpp includes it.
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace weft
