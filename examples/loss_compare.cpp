// Runs two command lines of a trainer and reports how far their losses, norms and weights differ.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "weft/core/error.h"
#include "weft/distributed/shard_files.h"
#include "weft/io/checkpoint.h"
#include "weft/io/json.h"
#include "weft/train/command_line.h"

namespace {

using namespace weft;

using Words = std::vector<std::string>;

struct Options {
  double loss = 1e-4, norm = 1e-3, weights = 1e-3;  ///< largest relative differences
  std::string out = "compared";
  Words commands[2];
};

// This program's flags, "--", the first command line, "--", the second.
Options parse(int argc, char** argv, bool& goes_on) {
  Words parts[3];
  int part = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--" && part < 2)
      ++part;
    else
      parts[part].push_back(word);
  }
  Options o;
  train::CommandLine line(
      "Runs two command lines of a trainer and compares what they have trained, step by step.\n"
      "loss_compare [flags] -- COMMAND A -- COMMAND B",
      "loss_compare");
  line.add("--loss", o.loss, "largest relative difference of losses; 0: the same bits");
  line.add("--norm", o.norm, "of gradient norms");
  line.add("--weights", o.weights, "of the final weights, all taken together");
  line.add("--out", o.out, "new folder for both runs: commands get --out FOLDER/a and /b");
  goes_on = line.parse(parts[0]);
  if (!goes_on) return o;
  for (const auto& [flag, value] :
       {std::pair{"--loss", o.loss}, {"--norm", o.norm}, {"--weights", o.weights}})
    check(value >= 0, "{}: must be at least 0, got {}", flag, value);
  check(part == 2 && !parts[1].empty() && !parts[2].empty(),
        "two command lines must follow, each behind a --");
  check(!io::exists(o.out), "--out: '{}' exists; name a new folder", o.out);
  o.commands[0] = parts[1];
  o.commands[1] = parts[2];
  return o;
}

void run(Words command, const std::string& out) {
  command.insert(command.end(), {"--out", out});
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  const pid_t child = fork();
  check_system(child >= 0, "cannot start a process");
  if (child == 0) {
    execvp(argv[0], argv.data());
    std::fprintf(stderr, "loss_compare: cannot run %s\n", argv[0]);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check_system(WIFEXITED(status) && WEXITSTATUS(status) == 0, "'{}' failed with status {}",
               command[0], WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

std::vector<io::Json> rows_of(const std::string& out) {
  std::vector<io::Json> rows;
  std::istringstream lines(io::read_file(out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    rows.push_back(io::Json::parse(line, out + "/metrics.jsonl"));
  return rows;
}

double relative(double a, double b) {
  if (a == b) return 0;
  const double d = std::abs(a - b) / std::max(std::abs(a), std::abs(b));
  return std::isnan(d) ? INFINITY : d;
}

/// The largest difference of one metric with its step, and the difference of its first row.
struct Worst {
  double difference = 0, first = 0;
  std::int64_t step = 0, first_step = 0;
};

// The metrics that depend on losses, by name; not times, rates or bytes.
std::map<std::string, double> numbers_of(const io::Json& row) {
  std::map<std::string, double> numbers;
  for (const io::JsonMember& m : row.members())
    if (m.key.ends_with("loss") || m.key == "grad_norm")
      numbers[m.key] = m.value.is_number() ? m.value.as_double() : NAN;
  return numbers;
}

std::map<std::string, Worst> compare_metrics(const std::string& a, const std::string& b) {
  const std::vector<io::Json> left = rows_of(a), right = rows_of(b);
  check(left.size() == right.size() && !left.empty(),
        "both must make the same number of steps, got {} and {}", left.size(), right.size());
  std::map<std::string, Worst> worst;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::int64_t step = left[i].at("step").as_int();
    std::map<std::string, double> x = numbers_of(left[i]), y = numbers_of(right[i]);
    // A metric that only one of them has counts as infinitely far apart.
    for (const auto& [key, value] : x) y.try_emplace(key, NAN);
    for (const auto& [key, value] : y) {
      const double d = relative(x.try_emplace(key, NAN).first->second, value);
      Worst& w = worst.try_emplace(key, Worst{d, d, step, step}).first->second;
      if (d > w.difference) w.difference = d, w.step = step;
    }
  }
  return worst;
}

// 0 only if both are equal; a NaN counts as infinitely far from everything.
double ratio(double difference, double size) {
  if (difference == 0) return 0;
  return std::isnan(difference) ? INFINITY : std::sqrt(difference / size);
}

/// |a - b| / |b| over all weights, and the parameter that differs most.
struct WeightDifference {
  double all = 0, worst = 0;
  std::string worst_name;
};

WeightDifference compare_weights(const std::string& a, const std::string& b) {
  const auto files = [](const std::string& out) {
    const auto found = io::find_checkpoint(out);
    check(found.has_value(), "'{}' has no checkpoint", out);
    return distributed::ShardFiles(found->shards("model"));
  };
  const distributed::ShardFiles left = files(a), right = files(b);
  check(left.names() == right.names(), "both must train the same parameters");
  WeightDifference d;
  double difference = 0, size = 0;
  for (const std::string& name : left.names()) {
    check(left.shape(name) == right.shape(name), "{} must have one shape, got {} and {}", name,
          left.shape(name), right.shape(name));
    const Tensor x = left.whole(name), y = right.whole(name);
    std::vector<double> u(static_cast<std::size_t>(x.numel())), v(u.size());
    x.copy_to(u);
    y.copy_to(v);
    double own_difference = 0, own_size = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
      own_difference += (u[i] - v[i]) * (u[i] - v[i]);
      own_size += v[i] * v[i];
    }
    const double own = ratio(own_difference, own_size);
    if (own > d.worst) d.worst = own, d.worst_name = name;
    difference += own_difference;
    size += own_size;
  }
  d.all = ratio(difference, size);
  return d;
}

bool report(const Options& o) {
  bool agrees = true;
  const auto line = [&](const std::string& what, double got, double limit,
                        const std::string& more) {
    const bool ok = got <= limit;
    agrees = agrees && ok;
    std::printf("%-18s %10.3g  limit %8.3g  %s  %s\n", what.c_str(), got, limit,
                ok ? "ok    " : "DIFFER", more.c_str());
  };
  for (const auto& [key, w] : compare_metrics(o.out + "/a", o.out + "/b"))
    line(key, w.difference, key == "grad_norm" ? o.norm : o.loss,
         message("largest in step {}; in step {} {}", w.step, w.first_step, w.first));
  const WeightDifference d = compare_weights(o.out + "/a", o.out + "/b");
  line("weights", d.all, o.weights,
       d.worst_name.empty() ? "" : message("largest {}: {}", d.worst_name, d.worst));
  return agrees;
}

}  // namespace

int main(int argc, char** argv) try {
  bool goes_on = true;
  const Options o = parse(argc, argv, goes_on);
  if (!goes_on) return 0;
  io::make_directories(o.out);
  run(o.commands[0], o.out + "/a");
  run(o.commands[1], o.out + "/b");
  return report(o) ? 0 : 1;
} catch (const weft::Error& e) {
  std::fprintf(stderr, "loss_compare: %s\n", e.what());
  return static_cast<int>(e.fault());
} catch (const std::exception& e) {
  std::fprintf(stderr, "loss_compare: %s\n", e.what());
  return 1;
}
