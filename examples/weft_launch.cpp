// Starts a program as several ranks that TCP connects, and starts it again after a failure:
//   weft_launch -n 8 train_gpt --data book.txt --out run --dp 8
// --help lists its flags, docs/cluster.md shows jobs on several machines.
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/examples/common/rank_processes.h"
#include "weft/train/command_line.h"
#include "weft/train/interrupt.h"

namespace weft::examples {
namespace {

constexpr std::int64_t kMostRanks = 4096;

struct LaunchOptions {
  std::int64_t ranks = 0, restarts = 0, nodes = 1, node = 0;
  bool elastic = false;
  double grace = 3;
  std::string log_dir, master;
};

// The launcher's own flags come first; the program's name is the first word that is none.
std::size_t program_in(const std::vector<std::string>& words) {
  const std::vector<std::string> without_value{"--elastic", "--help", "--version", "--man"};
  std::size_t i = 0;
  while (i < words.size() && words[i].starts_with('-')) {
    const bool alone =
        words[i].find('=') != std::string::npos ||
        std::find(without_value.begin(), without_value.end(), words[i]) != without_value.end();
    i += alone ? 1 : 2;
  }
  return std::min(i, words.size());
}

// 0: one that is free.
bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 &&
         text.find_first_not_of("0123456789") == std::string::npos && std::stoi(text) <= 65535;
}

distributed::Endpoint endpoint_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  check(colon > 0 && is_port(port), "--master: must be HOST:PORT, got '{}'", text);
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, std::atoi(port.c_str())};
}

// Where rank 0 will listen: port 0 means one that is free when the job starts.
distributed::Endpoint master_of(const LaunchOptions& o) {
  if (!o.master.empty()) return endpoint_of(o.master);
  distributed::Endpoint master{"127.0.0.1", 0};
  if (const char* host = std::getenv("MASTER_ADDR")) master.host = host;
  if (const char* port = std::getenv("MASTER_PORT")) {
    check(is_port(port), "MASTER_PORT: must be 0 to 65535, got '{}'", port);
    master.port = std::atoi(port);
  }
  return master;
}

int free_port(const std::string& host) {
  return distributed::own_end(distributed::listen_at({host, 0}, 1)).port;
}

// The token of the environment, or a random one.
std::string token() {
  if (const char* own = std::getenv("WEFT_TOKEN")) return own;
  unsigned char bytes[16];
  check_system(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "there are no random numbers");
  std::string text;
  for (const unsigned char b : bytes)
    for (const unsigned digit : {b / 16u, b % 16u}) text += "0123456789abcdef"[digit];
  return text;
}

void check_options(const LaunchOptions& o) {
  check(o.ranks >= 1 && o.ranks <= kMostRanks, "-n: must be 1 to {}, got {}", kMostRanks, o.ranks);
  check(o.restarts >= 0 && o.restarts <= 1000000, "--restarts: must be 0 to 1000000, got {}",
        o.restarts);
  check(o.grace >= 0 && o.grace <= 1e6, "--grace: must be 0 to 1e6, got {}", o.grace);
  check(o.nodes >= 1 && o.nodes <= kMostRanks, "--nodes: must be 1 to {}, got {}", kMostRanks,
        o.nodes);
  check(o.node >= 0 && o.node < o.nodes, "--node: must be below --nodes {}, got {}", o.nodes,
        o.node);
  check(!o.elastic || o.restarts > 0, "--elastic: needs --restarts of at least 1, got 0");
  check(!o.elastic || o.nodes == 1, "--elastic: works on one machine, got --nodes {}", o.nodes);
  check(o.nodes == 1 || (!o.master.empty() && std::getenv("WEFT_TOKEN")),
        "--nodes: needs --master HOST:PORT and a secret in WEFT_TOKEN, equal on all machines");
}

std::string what_happened(const RanksEnd& end) {
  if (end.signal) return message("rank {} was killed by signal {}", end.rank, end.signal);
  return message("rank {} ended with status {}", end.rank, end.status);
}

// Statuses that a new start would give again: see "Exit status" in docs/training.md.
bool may_start_again(const RanksEnd& end) {
  return !end.interrupted && end.status != 0 && end.status != 2 && end.status != 3 &&
         end.status != 130;
}

int supervise(const LaunchOptions& o, std::vector<std::string> command) {
  RankProcesses job{.command = command,
                    .ranks = static_cast<int>(o.ranks),
                    .first = static_cast<int>(o.node * o.ranks),
                    .world = static_cast<int>(o.nodes * o.ranks),
                    .log_dir = o.log_dir,
                    .grace_s = o.grace};
  const auto run = [&] {
    job.master = master_of(o);
    if (job.master.port == 0) job.master.port = free_port(job.master.host);
    job.token = token();
    return run_rank_processes(job);
  };
  RanksEnd end = run();
  for (std::int64_t restart = 1;; ++restart) {
    if (end.signal) std::fprintf(stderr, "weft_launch: %s\n", what_happened(end).c_str());
    if (restart > o.restarts || !may_start_again(end)) return end.status;
    // The program finds its newest complete checkpoint, or begins again without one.
    if (std::find(command.begin(), command.end(), "--resume") == command.end())
      command.push_back("--resume");
    // The layout gives what the other axes leave over to --dp.
    if (o.elastic && restart == 1) command.insert(command.end(), {"--dp", "0"});
    job.command = command;
    job.restarts = static_cast<int>(restart);
    const int failed = end.status;
    do {
      if (o.elastic && job.ranks == 1 && end.status == 2) return failed;  // no number suits
      if (o.elastic && job.ranks > 1) job.world = --job.ranks;
      std::fprintf(stderr, "weft_launch: restart %lld of %lld with %d ranks, as %s\n",
                   static_cast<long long>(restart), static_cast<long long>(o.restarts), job.world,
                   what_happened(end).c_str());
      end = run();
    } while (o.elastic && end.status == 2 && !end.interrupted);
  }
}

int run(int argc, char** argv) {
  train::outlive_readers();
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::size_t program = program_in(words);
  LaunchOptions o;
  train::CommandLine line(
      "Starts a program as several ranks on this machine, which TCP connects, and starts it again "
      "after a failure. Its own flags come before the program.",
      "weft_launch");
  line.examples({"weft_launch -n 8 train_gpt --data book.txt --out run",
                 "weft_launch -n 8 --log-dir logs --restarts 3 train_gpt --data book.txt --out run "
                 "--save-every 100"});
  line.add("-n,--ranks", o.ranks, "ranks on this machine");
  line.add("--log-dir", o.log_dir,
           "folder: what rank N writes goes to rank_N.log; errors and the first rank's output are "
           "shown as well");
  line.add("--restarts", o.restarts,
           "after a lost rank or a failure of the machine, start again with --resume, so often");
  line.add("--elastic", o.elastic,
           "a restart has one rank less, or as many as the layout allows with --dp 0");
  line.add("--grace", o.grace, "seconds for the other ranks to end after one has failed");
  line.add("--nodes", o.nodes, "machines, on each of which a weft_launch with the same -n runs");
  line.add("--node", o.node, "this machine's number, from 0");
  line.add("--master", o.master,
           "HOST:PORT where rank 0 listens; else MASTER_ADDR and MASTER_PORT, or 127.0.0.1 and a "
           "free port");
  std::vector<std::string> own(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(program));
  if (!line.parse(train::Arguments(std::move(own)))) return 0;
  check(program < words.size(), "a program must follow the flags: weft_launch -n 8 train_gpt ...");
  check_options(o);
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(program));
  return supervise(o, std::move(words));
}

}  // namespace
}  // namespace weft::examples

int main(int argc, char** argv) {
  try {
    return weft::examples::run(argc, argv);
  } catch (const weft::Error& e) {
    std::fprintf(stderr, "weft_launch: %s\n", e.what());
    return static_cast<int>(e.fault());
  }
}
