// Messages over TCP: sizes, tags and order, and what a stranger may write.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "weft/distributed/tcp_messages.h"
#include "weft/tests/support.h"
#include "weft/tests/tcp_support.h"

namespace weft::distributed::tcp_messages_test {
namespace {

using namespace tcp_test;
using std::chrono::milliseconds;

// Rank 1 of 2 by hand: after its hello it writes what it likes.
struct Impostor {
  explicit Impostor(int port) : socket(connect_to({"127.0.0.1", port}, soon())) {
    const TcpHello h = hello(1, 2);
    TcpWelcome answer;
    TcpSeat seats[2];
    ok = send_all(socket, &h, sizeof h, soon()) &&
         receive_all(socket, &answer, sizeof answer, soon()) &&
         receive_all(socket, seats, sizeof seats, soon());
  }
  void write(const void* data, std::size_t bytes) {
    ok = ok && send_all(socket, data, bytes, soon());
  }
  Socket socket;
  bool ok = false;
};

Note wait_for_note(TcpMessages& m) {
  Note note;
  while (!m.hear(note)) std::this_thread::sleep_for(milliseconds(1));
  return note;
}

}  // namespace

TEST_CASE("tcp_messages: sizes, order, tags, to itself") {
  const int port = free_port();
  run_ranks(2, [&](World& threads) {
    const int me = threads.rank();
    TcpMessages m(place(me, 2, port), kSeconds);
    const std::vector<std::int64_t> sizes{1, 100, kTcpSmall, kTcpSmall + 1, 5 << 20};
    // Messages 3 and 4 have one tag, and so have 1 and 2.
    const auto tag = [](std::size_t i) { return static_cast<int>((i + 1) / 2); };
    const auto data = [&](int to, std::size_t i) {
      std::vector<char> bytes(static_cast<std::size_t>(sizes[i]));
      for (std::size_t b = 0; b < bytes.size(); ++b)
        bytes[b] = static_cast<char>(7 * b + b / 251 + 31 * i + static_cast<std::size_t>(to));
      return bytes;
    };
    for (const int to : {1 - me, me}) {
      std::vector<std::vector<char>> in, out;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        out.push_back(data(to, i));
        in.emplace_back(out[i].size());
      }
      const auto send = [&] {
        for (std::size_t i = 0; i < sizes.size(); ++i)
          m.send(to, tag(i), out[i].data(), sizes[i], 0);
      };
      const auto receive = [&] {  // the last tag first
        for (const std::size_t i : {3u, 4u, 1u, 2u, 0u})
          m.receive(to, tag(i), in[i].data(), sizes[i], 1);
      };
      const auto wait = [&] {
        while (m.under_way(0) + m.under_way(1) > 0) {
          m.progress();
          if (!m.has_moved(0)) std::this_thread::yield();
        }
      };
      // Rank 0 expects them before they come, rank 1 some time after.
      if (me == 0) receive();
      send();
      if (me == 1) {
        for (int i = 0; i < 20; ++i) {
          m.progress();
          std::this_thread::sleep_for(milliseconds(1));
        }
        receive();
      }
      wait();
      for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(in[i] == data(me, i));
      m.send(to, 0, nullptr, 0, 0);
      m.receive(to, 0, nullptr, 0, 0);
      CHECK(m.under_way(0) + m.under_way(1) == 0);
    }
    m.finish();
  });
}

TEST_CASE("tcp_messages: bytes one by one, and what is no message") {
  const int port = free_port();
  const auto with = [&](const std::function<void(TcpMessages&, Impostor&)>& f) {
    std::unique_ptr<TcpMessages> m;
    std::thread zero([&] { m = std::make_unique<TcpMessages>(place(0, 2, port), kSeconds); });
    Impostor one(port);
    zero.join();
    REQUIRE(one.ok);
    f(*m, one);
    CHECK(one.ok);
  };
  const auto lost = [](TcpMessages& m) {
    const Note note = wait_for_note(m);
    CHECK(note.kind == Note::Kind::lost);
    CHECK(note.from == 1);
    CHECK(m.waits_for(0, 1) == false);
    return std::string(note.text);
  };
  with([](TcpMessages& m, Impostor& one) {
    const TcpFrame frame{TcpFrame::Kind::small, 4, 0, 3};
    int got = 0;
    m.receive(1, 4, &got, 3, 0);
    const char* const bytes = reinterpret_cast<const char*>(&frame);
    for (std::size_t i = 0; i < sizeof frame; ++i) {
      one.write(bytes + i, 1);
      m.progress();
    }
    for (const char c : {'a', 'b', 'c'}) {
      CHECK(m.under_way(0) == 1);
      one.write(&c, 1);
      do {
        m.progress();
      } while (c == 'c' && m.under_way(0) > 0);
    }
    CHECK(std::memcmp(&got, "abc\0", 4) == 0);
    // A message of another size than the expected one is trouble, whichever comes first.
    m.receive(1, 4, &got, 2, 0);
    one.write(bytes, sizeof frame);
    one.write("abc", 3);
    while (m.trouble(0).empty()) m.progress();
    CHECK(m.trouble(1).empty());
    CHECK(m.trouble(0) == "a message of rank 1 had 3 bytes instead of 2");
    CHECK(got == 0x636261);
  });
  const std::int64_t huge = std::int64_t{1} << 62;
  for (const TcpFrame& frame :
       {TcpFrame{TcpFrame::Kind::small, 0, 0, huge}, TcpFrame{TcpFrame::Kind::small, 0, 0, -1},
        TcpFrame{TcpFrame::Kind::note, 0, 0, huge}, TcpFrame{TcpFrame::Kind::large, 0, 0, huge},
        TcpFrame{TcpFrame::Kind::accept, 0, 5, 0}, TcpFrame{TcpFrame::Kind::offer, 0, 0, -huge},
        TcpFrame{static_cast<TcpFrame::Kind>(77), 0, 0, 1}})
    with([&](TcpMessages& m, Impostor& one) {
      one.write(&frame, sizeof frame);
      CHECK(lost(m) == "it sent what is no message of Weft");
    });
  with([&](TcpMessages& m, Impostor& one) {
    // Memory for a large message is the receiver's own.
    const TcpFrame offer{TcpFrame::Kind::offer, 0, 0, huge};
    one.write(&offer, sizeof offer);
    one.socket.close();
    CHECK(lost(m) == "its connection was closed");
  });
}

}  // namespace weft::distributed::tcp_messages_test
