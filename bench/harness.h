#pragma once
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "weft/bench/timing.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"

/// Reporting as a table and as JSON rows of {name, value, unit}.
namespace weft::bench {

/// A flag of one benchmark, stored in `value`. A flag without a placeholder takes no value and
/// stores "yes".
struct Flag {
  std::string name;
  std::string* value;
  std::string placeholder;
};

/// Collects rows, prints each one at once and writes all of them at the end.
class Report {
 public:
  /// Parses "--json FILE", "--threads N", "--clock wall|processor" and the flags in `more`; exits
  /// with status 2 on anything else.
  Report(int argc, char** argv, std::initializer_list<Flag> more = {}) {
    std::string clock = "wall";
    std::vector<Flag> flags{{"--json", &json_, "FILE"},
                            {"--threads", nullptr, "N"},
                            {"--clock", &clock, "wall|processor"}};
    flags.insert(flags.end(), more);
    for (int i = 1; i < argc; ++i) {
      const auto flag = std::find_if(flags.begin(), flags.end(),
                                     [&](const Flag& f) { return argv[i] == f.name; });
      const bool is_switch = flag != flags.end() && flag->placeholder.empty();
      if (flag == flags.end() || (!is_switch && ++i == argc)) usage(argv[0], flags);
      if (flag->value)
        *flag->value = is_switch ? "yes" : argv[i];
      else
        set_num_threads(std::atoi(argv[i]));
    }
    if (clock != "wall" && clock != "processor") usage(argv[0], flags);
    count_processor_time = clock == "processor";
    std::printf("%d threads\n", num_threads());
  }

  void row(const std::string& name, double value, const std::string& unit) {
    std::printf("%-44s %12.4g %s\n", name.c_str(), value, unit.c_str());
    std::fflush(stdout);
    add(name, value, unit);
  }
  /// The same without printing.
  void add(const std::string& name, double value, const std::string& unit) {
    rows_.push_back({name, unit, value});
  }

  /// The program's exit status.
  int finish() const {
    if (json_.empty()) return 0;
    std::FILE* f = std::fopen(json_.c_str(), "w");
    if (!f) {
      std::fprintf(stderr, "cannot write %s\n", json_.c_str());
      return 1;
    }
    std::fputs("[\n", f);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      std::fprintf(f, "  {\"name\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"}%s\n",
                   rows_[i].name.c_str(), rows_[i].value, rows_[i].unit.c_str(),
                   i + 1 < rows_.size() ? "," : "");
    std::fputs("]\n", f);
    return std::fclose(f) == 0 ? 0 : 1;
  }

 private:
  struct Row {
    std::string name, unit;
    double value;
  };
  [[noreturn]] static void usage(const char* program, const std::vector<Flag>& flags) {
    std::fprintf(stderr, "usage: %s", program);
    for (const Flag& f : flags)
      std::fprintf(stderr, " [%s%s%s]", f.name.c_str(), f.placeholder.empty() ? "" : " ",
                   f.placeholder.c_str());
    std::fputc('\n', stderr);
    std::exit(2);
  }
  std::string json_;
  std::vector<Row> rows_;
};

}  // namespace weft::bench
