#pragma once
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/bench/timing.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/io/json.h"

/// Reporting as a table and as lines of JSON, {name, value, unit}.
namespace weft::bench {

/// A flag of one benchmark, stored in `value`. A flag without a placeholder takes no value and
/// stores "yes".
struct Flag {
  std::string name;
  std::string* value;
  std::string placeholder;
};

struct Row {
  std::string name;
  double value;
  std::string unit;
};

/// What a program prints of an Error, on one line; returns its exit status.
inline int failed(std::string_view program, const Error& e) {
  program.remove_prefix(program.rfind('/') + 1);
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(), e.what());
  return static_cast<int>(e.fault());
}

/// The value of a flag. Throws Error unless it is a whole number in [least, 2^31).
inline int whole_number(const char* flag, const std::string& text, int least) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  check(error == std::errc() && stop == end && value >= least,
        "{}: must be a whole number in [{}, {}], got '{}'", flag, least,
        std::numeric_limits<int>::max(), text);
  return value;
}

/// Prints each row and appends it to the file of --json at once, so that a run that is stopped
/// leaves the rows that it has measured.
class Report {
 public:
  /// Parses "--json FILE", "--threads N", "--clock wall|processor" and the flags in `more`; exits
  /// with status 2 on anything else. Throws Error when FILE cannot be written, before anything is
  /// measured.
  Report(int argc, char** argv, const std::vector<Flag>& more = {}) {
    std::string clock = "wall", threads;
    std::vector<Flag> flags{{"--json", &json_, "FILE"},
                            {"--threads", &threads, "N"},
                            {"--clock", &clock, "wall|processor"}};
    flags.insert(flags.end(), more.begin(), more.end());
    for (int i = 1; i < argc; ++i) {
      const auto flag = std::find_if(flags.begin(), flags.end(),
                                     [&](const Flag& f) { return argv[i] == f.name; });
      const bool is_switch = flag != flags.end() && flag->placeholder.empty();
      if (flag == flags.end() || (!is_switch && ++i == argc)) usage(argv[0], flags);
      *flag->value = is_switch ? "yes" : argv[i];
    }
    if (!threads.empty()) set_num_threads(whole_number("--threads", threads, 1));
    check_system(json_.empty() || std::ofstream(json_, std::ios::app).good(),
                 "--json: cannot write {}", json_);
    if (clock != "wall" && clock != "processor") usage(argv[0], flags);
    count_processor_time = clock == "processor";
    std::printf("%d threads\n", num_threads());
  }

  /// Whether --json names one.
  bool has_file() const { return !json_.empty(); }
  /// Continues the file of a run that was stopped: its rows stay, and new ones follow.
  void resume() {
    std::string kept;
    {
      std::ifstream file(json_);
      // Without the last line if a kill has cut it.
      for (std::string line; std::getline(file, line) && !file.eof();) {
        const io::Json row = io::Json::parse(line, json_);
        earlier_[row.at("name").as_string()] = row.at("value").as_double();
        kept += line + "\n";
      }
    }
    std::ofstream(json_) << kept;
    mode_ = std::ios::app;
  }
  /// The value of a row of that run; null if it has none of this name.
  const double* earlier(const std::string& name) const {
    const auto found = earlier_.find(name);
    return found == earlier_.end() ? nullptr : &found->second;
  }

  void row(const std::string& name, double value, const std::string& unit) {
    rows({{name, value, unit}});
  }
  /// Rows of one measurement: a run that is killed has written all of them or none.
  void rows(const std::vector<Row>& together) {
    for (const Row& r : together)
      std::printf("%-44s %12.4g %s\n", r.name.c_str(), r.value, r.unit.c_str());
    std::fflush(stdout);
    write(together);
  }
  /// A row that is not printed.
  void add(const std::string& name, double value, const std::string& unit) {
    write({{name, value, unit}});
  }

  /// The program's exit status.
  int finish() {
    write({});
    if (json_.empty() || file_) return 0;
    std::fprintf(stderr, "cannot write %s\n", json_.c_str());
    return 1;
  }

 private:
  void write(const std::vector<Row>& together) {
    if (json_.empty()) return;
    if (!file_.is_open()) file_.open(json_, mode_);
    std::string lines;
    for (const Row& r : together) {
      io::Json row = io::Json::object();
      lines += row.set("name", r.name).set("value", r.value).set("unit", r.unit).dump() + "\n";
    }
    file_ << lines << std::flush;
  }
  [[noreturn]] static void usage(const char* program, const std::vector<Flag>& flags) {
    std::fprintf(stderr, "usage: %s", program);
    for (const Flag& f : flags)
      std::fprintf(stderr, " [%s%s%s]", f.name.c_str(), f.placeholder.empty() ? "" : " ",
                   f.placeholder.c_str());
    std::fputc('\n', stderr);
    std::exit(2);
  }
  std::string json_;
  std::ofstream file_;
  std::ios::openmode mode_ = std::ios::out;
  std::map<std::string, double> earlier_;
};

}  // namespace weft::bench
