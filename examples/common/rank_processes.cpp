#include "weft/examples/common/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::examples {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLookMs = 20;
constexpr std::chrono::milliseconds kLastOutput{500};  // of what a rank has started itself

// Signals that came and have not been passed on.
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};
volatile std::sig_atomic_t came[kSignals.size()];

void on_signal(int signal) {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == signal) came[i] = 1;
}

class SignalScope {
 public:
  SignalScope() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      came[i] = 0;
      sigaction(kSignals[i], nullptr, &before_[i]);
      // A job started to survive its terminal (nohup) keeps ignoring SIGHUP; its ranks inherit
      // that.
      if (before_[i].sa_handler == SIG_IGN) continue;
      struct sigaction action = {};
      action.sa_handler = on_signal;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~SignalScope() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalScope(const SignalScope&) = delete;

 private:
  struct sigaction before_[kSignals.size()];
};

// What a launcher above this one has set for its own ranks: a rank would take it for its own place.
constexpr const char* kForeign[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK",
    "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};

std::string path_of(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = folder + "/" + program; access(file.c_str(), X_OK) == 0)
      return file;
  return program;
}

void write_all(int fd, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a full disk or a closed terminal does not end the job
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// A file descriptor that is closed once.
struct Fd {
  int fd = -1;
  void close() {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
};

struct Rank {
  int number = 0;
  pid_t pid = -1;
  bool alive = false;
  Fd out, err, log;
};

class Ranks {
 public:
  explicit Ranks(const RankProcesses& job) : job_(job), program_(path_of(job.command.at(0))) {
    check(access(program_.c_str(), X_OK) == 0, "there is no program {}", job.command[0]);
    if (!job.log_dir.empty()) io::make_directories(job.log_dir);
  }
  ~Ranks() {
    kill_all(SIGKILL);
    for (Rank& r : ranks_) {
      if (r.alive) waitpid(r.pid, nullptr, 0);
      r.out.close();
      r.err.close();
      r.log.close();
    }
  }
  Ranks(const Ranks&) = delete;

  RanksEnd run();

 private:
  void start(int index);
  [[noreturn]] void become(int index, const Rank& r, int out, int err);
  void pass_on_signals();
  void pass_on_output(int wait_ms);
  bool copy(Fd& from, const Rank& r, int to);
  void reap();
  void kill_all(int signal) {
    for (const Rank& r : ranks_)
      if (r.alive) ::kill(-r.pid, signal);
  }
  bool any_alive() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.alive; });
  }

  const RankProcesses& job_;
  const std::string program_;
  std::vector<Rank> ranks_;
  RanksEnd end_;
  Clock::time_point failed_at_{};
  bool killed_ = false;
  bool hung_up_ = false;
};

void Ranks::start(int index) {
  Rank& r = ranks_.emplace_back();
  r.number = job_.first + index;
  Fd out, err;
  if (!job_.log_dir.empty()) {
    const std::string path = message("{}/rank_{}.log", job_.log_dir, r.number);
    r.log.fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int pipes[4];
    check_system(r.log.fd >= 0 && pipe2(pipes, O_CLOEXEC) == 0 && pipe2(pipes + 2, O_CLOEXEC) == 0,
                 "cannot write {}: {}", path, std::strerror(errno));
    r.out.fd = pipes[0];
    out.fd = pipes[1];
    r.err.fd = pipes[2];
    err.fd = pipes[3];
  }
  const pid_t parent = getpid();
  r.pid = fork();
  check_system(r.pid >= 0, "cannot start rank {}: {}", r.number, std::strerror(errno));
  if (r.pid == 0) {
    // Its own process group: Ctrl-C reaches the ranks once, through this process.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    become(index, r, out.fd, err.fd);
  }
  setpgid(r.pid, r.pid);
  r.alive = true;
  out.close();
  err.close();
}

void Ranks::become(int index, const Rank& r, int out, int err) {
  for (const int signal : kSignals)
    if (::signal(signal, SIG_DFL) == SIG_IGN) ::signal(signal, SIG_IGN);
  for (const int signal : {SIGPIPE, SIGXFSZ})
    ::signal(signal, SIG_DFL);  // the launcher ignores them
  for (const char* name : kForeign) unsetenv(name);
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(r.number));
  set("WORLD_SIZE", std::to_string(job_.world));
  set("LOCAL_RANK", std::to_string(index));
  set("LOCAL_WORLD_SIZE", std::to_string(job_.ranks));
  set("MASTER_ADDR", job_.master.host);
  set("MASTER_PORT", std::to_string(job_.master.port));
  set("WEFT_TOKEN", job_.token);
  set("WEFT_RESTART", std::to_string(job_.restarts));
  if (index > 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
  }
  if (out >= 0) dup2(out, STDOUT_FILENO);
  if (err >= 0) dup2(err, STDERR_FILENO);
  std::vector<char*> words;
  for (const std::string& word : job_.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(program_.c_str(), words.data());
  std::fprintf(stderr, "weft_launch: cannot run %s: %s\n", program_.c_str(), std::strerror(errno));
  _exit(2);
}

void Ranks::pass_on_signals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (!came[i]) continue;
    came[i] = 0;
    const int signal = kSignals[i];
    // The shell and the kernel both report a closed terminal: a second SIGHUP is no second request,
    // and would end a rank that has already saved and restored its signals.
    if (signal == SIGHUP && std::exchange(hung_up_, true)) continue;
    const bool again = end_.interrupted && signal != SIGHUP && signal != SIGUSR1;
    end_.interrupted = true;
    kill_all(again ? SIGKILL : signal);
  }
}

// Passes on what can be read; false at the end.
bool Ranks::copy(Fd& from, const Rank& r, int to) {
  char bytes[16 << 10];
  const ssize_t n = ::read(from.fd, bytes, sizeof bytes);
  if (n < 0 && errno == EINTR) return true;
  if (n <= 0) return false;
  write_all(r.log.fd, bytes, static_cast<std::size_t>(n));
  if (to >= 0) write_all(to, bytes, static_cast<std::size_t>(n));
  return true;
}

void Ranks::pass_on_output(int wait_ms) {
  std::vector<pollfd> polled;
  for (const Rank& r : ranks_)
    for (const Fd& fd : {r.out, r.err}) polled.push_back({fd.fd, POLLIN, 0});
  if (::poll(polled.data(), polled.size(), wait_ms) <= 0) return;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    if (polled[2 * i].revents && !copy(r.out, r, i == 0 ? STDOUT_FILENO : -1)) r.out.close();
    if (polled[2 * i + 1].revents && !copy(r.err, r, STDERR_FILENO)) r.err.close();
  }
}

void Ranks::reap() {
  for (Rank& r : ranks_) {
    int status = 0;
    if (!r.alive || waitpid(r.pid, &status, WNOHANG) != r.pid) continue;
    r.alive = false;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int own = signal ? 128 + signal : WEXITSTATUS(status);
    // The ranks that hear of a killed one, or of a user's mistake on one, may end before it is seen
    // here.
    const bool is_mistake = !signal && own == static_cast<int>(Fault::user) &&
                            end_.status == static_cast<int>(Fault::system);
    const bool is_cause = !end_.signal && !killed_ && (signal || is_mistake);
    if (own == 0 || (end_.rank >= 0 && !is_cause)) continue;
    if (end_.rank < 0) failed_at_ = Clock::now();
    end_.status = own;
    end_.rank = r.number;
    end_.signal = signal;
  }
}

RanksEnd Ranks::run() {
  const SignalScope signals;
  for (int i = 0; i < job_.ranks; ++i) start(i);
  while (any_alive()) {
    pass_on_output(kLookMs);
    pass_on_signals();
    reap();
    const std::chrono::duration<double> since = Clock::now() - failed_at_;
    if (end_.rank < 0 || killed_ || since.count() < job_.grace_s) continue;
    killed_ = true;
    for (const Rank& r : ranks_)
      if (r.alive)
        std::fprintf(stderr, "weft_launch: rank %d did not end within %g s after rank %d: killed\n",
                     r.number, job_.grace_s, end_.rank);
    kill_all(SIGKILL);
  }
  const Clock::time_point until = Clock::now() + kLastOutput;
  const auto open = [](const Rank& r) { return r.out.fd >= 0 || r.err.fd >= 0; };
  while (std::any_of(ranks_.begin(), ranks_.end(), open) && Clock::now() < until)
    pass_on_output(kLookMs);
  return end_;
}

}  // namespace

RanksEnd run_rank_processes(const RankProcesses& job) { return Ranks(job).run(); }

}  // namespace weft::examples
