// Ranks over TCP as threads of one process: how they find each other, and what strangers can do.
// tests/cli/test_tcp.py covers processes.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/distributed/message_world.h"
#include "weft/distributed/tcp_hello.h"
#include "weft/distributed/tcp_messages.h"
#include "weft/distributed/tcp_world.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"
#include "weft/tests/tcp_support.h"

namespace weft::distributed::tcp_world_test {
namespace {

using namespace tcp_test;
using std::chrono::milliseconds;

// Runs f on ranks that TCP connects.
void over_tcp(int ranks, const std::function<void(World&)>& f,
              const std::string& host = "127.0.0.1") {
  const int port = free_port(host);
  run_ranks(ranks, [&](World& threads) {
    const auto world = tcp_world({.timeout_s = kSeconds}, place(threads.rank(), ranks, port, host));
    f(*world);
  });
}

std::mutex log_mutex;
std::string logged;
void keep(std::string_view line) {
  const std::lock_guard lock(log_mutex);
  logged += std::string(line) + "\n";
}
struct Logged {
  Logged() {
    logged.clear();
    set_log_handler(keep);
  }
  ~Logged() { set_log_handler(nullptr); }
  bool waits_for(const std::string& text) {
    for (int i = 0; i < 6000; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      const std::lock_guard lock(log_mutex);
      if (logged.find(text) != std::string::npos) return true;
    }
    return false;
  }
};

// What rank 0 answers to a hello that it refuses.
std::string answer_to(int port, const TcpHello& h) {
  const Socket s = connect_to({"127.0.0.1", port}, soon());
  TcpWelcome answer;
  if (!send_all(s, &h, sizeof h, soon()) || !receive_all(s, &answer, sizeof answer, soon()))
    return "nothing";
  return answer.text;
}

}  // namespace

TEST_CASE("tcp_world: conformance") {
  for (const int ranks : {1, 3})  // tests/cli/test_tcp.py has 2 and 4
    over_tcp(ranks, [&](World& w) {
      CHECK(std::string(w.backend()) == "tcp");
      CHECK(w.size() == ranks);
      test::check_groups(w);
      CHECK(bytes_moved(w) == w.stats().bytes_sent);
    });
}

TEST_CASE("tcp_world: IPv6") {
  try {
    free_port("::1");
  } catch (const Error&) {
    return;  // this machine has none
  }
  over_tcp(
      2, [](World& w) { w.all().barrier().wait(); }, "::1");
  CHECK(Endpoint{"::1", 5}.text() == "[::1]:5");
}

TEST_CASE("tcp_world: ranks that are late are waited for") {
  const int port = free_port();
  run_ranks(3, [&](World& threads) {
    std::this_thread::sleep_for(milliseconds(200 * (2 - threads.rank())));  // rank 0 comes last
    tcp_world({.timeout_s = kSeconds}, place(threads.rank(), 3, port))->all().barrier().wait();
  });
}

TEST_CASE("tcp_world: strangers are refused, and the job goes on waiting") {
  Logged log;
  const int port = free_port();
  std::vector<Socket> silent;
  std::atomic<bool> done{false};
  run_ranks(3, [&](World& threads) {
    if (threads.rank() == 1) {
      const Endpoint at{"127.0.0.1", port};
      for (int i = 0; i < 3; ++i) silent.push_back(connect_to(at, soon()));
      const std::string http = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
      const Socket browser = connect_to(at, soon());
      CHECK(send_all(browser, http.data(), http.size(), soon()));
      CHECK(log.waits_for(": it is no rank of Weft\n"));
      CHECK(answer_to(port, hello(1, 3, "secre")) == "its WEFT_TOKEN is another one");
      CHECK(answer_to(port, hello(1, 3, "secret2")) == "its WEFT_TOKEN is another one");
      CHECK(answer_to(port, hello(1, 3, "")) == "its WEFT_TOKEN is another one");
      CHECK(answer_to(port, hello(1, 1 << 30)) == "its WORLD_SIZE is 1073741824 and not 3");
      CHECK(answer_to(port, hello(-7, 3)) == "its RANK -7 is not in 1 to 2");
      CHECK(answer_to(port, hello(3, 3)) == "its RANK 3 is not in 1 to 2");
      TcpHello newer = hello(1, 3);
      newer.version = 2;
      CHECK(answer_to(port, newer) == "it is another version of Weft");
      // One that says less than it should, and one that hangs up.
      const TcpHello whole = hello(1, 3);
      silent.push_back(connect_to(at, soon()));
      CHECK(send_all(silent.back(), &whole, 100, soon()));
      CHECK(send_all(connect_to(at, soon()), &whole, 100, soon()));
      // A rank that went again before all were there.
      CHECK(send_all(connect_to(at, soon()), &whole, sizeof whole, soon()));
      done = true;
    }
    while (threads.rank() == 2 && !done) std::this_thread::sleep_for(milliseconds(1));
    tcp_world({.timeout_s = kSeconds}, place(threads.rank(), 3, port))->all().barrier().wait();
  });
  CHECK(log.waits_for("tcp: rank 0 refused a connection from 127.0.0.1:"));
}

TEST_CASE("tcp_world: a rank that comes twice is refused") {
  const int port = free_port();
  std::string second;
  std::atomic<bool> gone{false};  // its place is free again
  run_ranks(3, [&](World& threads) {
    if (threads.rank() == 2) {
      const TcpHello h = hello(1, 3);
      Socket one = connect_to({"127.0.0.1", port}, soon());
      CHECK(send_all(one, &h, sizeof h, soon()));
      second = answer_to(port, h);
      one.close();
      gone = true;
    }
    if (threads.rank() == 1)
      while (!gone) std::this_thread::sleep_for(milliseconds(1));
    tcp_world({.timeout_s = kSeconds}, place(threads.rank(), 3, port))->all().barrier().wait();
  });
  CHECK(second == "another process is rank 1");
}

TEST_CASE("tcp_world: errors at the start") {
  const int port = free_port();
  const auto error = [](const TcpPlace& p) {
    return test::error_of([&] { tcp_world({.timeout_s = 1}, p); });
  };
  CHECK(error(place(2, 2, port)) == "tcp_world: RANK must be below WORLD_SIZE 2, got 2");
  CHECK(error(place(0, 2, 0)) == "tcp_world: MASTER_PORT must be 1 to 65535, got 0");
  CHECK(
      error({0, 2, {"10.0.0.1", 5}, ""}) ==
      "tcp_world: WEFT_TOKEN must be set, to a secret that all ranks know, when rank 0 listens at "
      "10.0.0.1:5: anybody could connect");
  CHECK(error({0, 2, {"127.0.0.1", port}, std::string(128, 'x')}) ==
        "tcp_world: WEFT_TOKEN must have at most 127 characters, got 128");
  CHECK(error({0, 2, {"no such host", port}, "x"})
            .starts_with("tcp: host 'no such host' is unknown: "));
  const auto begun = std::chrono::steady_clock::now();
  CHECK(test::error_of([&] {
          connect_to({"no such host", port}, begun + milliseconds(200));
        }).starts_with("tcp: host 'no such host' is unknown: "));
  CHECK(std::chrono::steady_clock::now() >= begun + milliseconds(200));
  const Socket other = listen_at({"127.0.0.1", port}, 1);
  CHECK(error(place(0, 2, port)) ==
        message("tcp: port {} of 127.0.0.1 is in use, perhaps by another job; set another "
                "MASTER_PORT",
                port));
}

TEST_CASE("tcp_world: those who do not come are named") {
  const int port = free_port(), unused = free_port();
  std::string zero, three, alone, hidden;
  std::vector<std::thread> ranks;
  const auto start = [&](std::string& error, const TcpPlace& p) {
    ranks.emplace_back(
        [&error, p] { error = test::error_of([&] { tcp_world({.timeout_s = 1}, p); }); });
  };
  start(zero, place(0, 4, port));
  start(three, place(3, 4, port));
  start(alone, place(1, 2, unused));
  // A name of this machine that only this machine can use: 127.0.0.1 as one number.
  const int other = free_port();
  start(hidden, {0, 2, {"2130706433", other}, "token"});
  for (std::thread& t : ranks) t.join();
  const std::string missing =
      message("tcp_world: ranks 1, 2 did not come to 127.0.0.1:{} within 10 s", port);
  CHECK(zero == missing);
  CHECK(hidden == message("tcp_world: rank 1 did not come to 2130706433:{} within 10 s; 2130706433 "
                          "is 127.0.0.1 here, where no other machine comes",
                          other));
  CHECK(three == missing);
  CHECK(alone ==
        message("tcp_world: rank 1 found nobody at 127.0.0.1:{} within 10 s: rank 0 did not start, "
                "or has another MASTER_ADDR or MASTER_PORT",
                unused));
}

TEST_CASE("tcp_world: the environment gives the place") {
  const char* const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WEFT_TOKEN"};
  for (const char* name : names) unsetenv(name);
  CHECK(test::error_of([] { tcp_place(); }) ==
        "tcp_world: RANK and WORLD_SIZE must be set; scripts/launch.sh -n RANKS PROGRAM sets them");
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "8", 1);
  CHECK(tcp_place().rank == 3);
  CHECK(tcp_place().size == 8);
  CHECK(tcp_place().master.text() == "127.0.0.1:29500");
  CHECK(tcp_place().token == "");
  setenv("MASTER_ADDR", "node1", 1);
  setenv("MASTER_PORT", "123", 1);
  setenv("WEFT_TOKEN", "x", 1);
  CHECK(tcp_place().master.text() == "node1:123");
  CHECK(tcp_place().token == "x");
  setenv("RANK", "3x", 1);
  CHECK(test::error_of([] { tcp_place(); }) == "tcp_world: RANK must be a number, got '3x'");
  for (const char* name : names) unsetenv(name);
}

TEST_CASE("tcp_world: a rank that vanishes is heard of at once") {
  const int port = free_port();
  std::string waits, computes;
  const auto all_reduce = [](World& w) {
    return test::error_of([&] { w.all().all_reduce(Tensor::full({1000}, 1.0)).wait(); });
  };
  const auto rank = [&](int r) {
    const auto world = tcp_world({.timeout_s = 600}, place(r, 3, port));
    if (r == 0) {
      waits = all_reduce(*world);
    } else {
      while (world->failure().empty()) std::this_thread::sleep_for(milliseconds(1));
      computes = all_reduce(*world);
    }
  };
  std::thread zero(rank, 0), two(rank, 2);
  TcpMessages(place(1, 3, port), kSeconds);
  zero.join();
  two.join();
  CHECK(waits.find("rank 1 was lost: its connection was closed") != std::string::npos);
  CHECK(computes.find("rank 1 was lost") != std::string::npos);
}

}  // namespace weft::distributed::tcp_world_test
