#include "weft/cuda/emu/board.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/core/error.h"

namespace weft::emu {
namespace {

namespace fs = std::filesystem;
constexpr int kYields = 20;
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

std::string Board::make() {
  std::string path = fs::temp_directory_path().string() + "/weft-nccl-XXXXXX";
  check_system(mkdtemp(path.data()) != nullptr, "nccl: cannot make a folder {}", path);
  return path;
}

Board::Board(std::string folder, int rank, int size)
    : folder_(std::move(folder)),
      rank_(rank),
      size_(size),
      sent_(static_cast<std::size_t>(size)),
      received_(sent_) {}

// Writes atomically: the file appears under its name complete or not at all.
void Board::put(const std::string& name, const Bytes& bytes) const {
  // A thread that aborts writes while another one does.
  static std::atomic<int> count{0};
  const std::string hidden = path(message("new-{}-{}", rank_, count++));
  std::ofstream(hidden, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::error_code failed;
  fs::rename(hidden, path(name), failed);
}

// Returns false after abort().
bool Board::wait(const std::string& name, Bytes& bytes) const {
  for (int i = 0; !aborted_; ++i) {
    if (std::ifstream file(path(name), std::ios::binary); file) {
      bytes.assign(std::istreambuf_iterator<char>(file), {});
      return true;
    }
    if (i < kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kSleep);
  }
  return false;
}

std::vector<Bytes> Board::exchange(const Bytes& own) {
  put(message("{}-{}", round_, rank_), own);
  std::vector<Bytes> all(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r)
    if (!wait(message("{}-{}", round_, r), all[static_cast<std::size_t>(r)])) {
      pass_zeros(own.size());
      return {};
    }
  // A rank that has reached this round has read all of the previous one.
  std::error_code failed;
  fs::remove(path(message("{}-{}", round_ - 1, rank_)), failed);
  ++round_;
  return all;
}

void Board::hang(const Bytes& own) {
  while (!aborted_) std::this_thread::sleep_for(kSleep);
  pass_zeros(own.size());
}

void Board::pass_zeros(std::size_t bytes) {
  for (int r = 0; r < size_; ++r)
    if (const std::string name = message("{}-{}", round_, r); !fs::exists(path(name)))
      put(name, Bytes(bytes));
  ++round_;
}

void Board::send(int to, const Bytes& bytes) {
  put(message("{}-to-{}-{}", rank_, to, sent_[static_cast<std::size_t>(to)]++), bytes);
}

Bytes Board::receive(int from) {
  const std::string name =
      message("{}-to-{}-{}", from, rank_, received_[static_cast<std::size_t>(from)]++);
  Bytes bytes;
  std::error_code failed;
  if (wait(name, bytes)) fs::remove(path(name), failed);
  return bytes;
}

void Board::leave() {
  put(message("gone-{}", rank_), {});
  for (int r = 0; r < size_; ++r)
    if (!fs::exists(path(message("gone-{}", r)))) return;
  std::error_code failed;
  fs::remove_all(folder_, failed);
}

void Board::abort() {
  aborted_ = true;
  leave();
}

}  // namespace weft::emu
