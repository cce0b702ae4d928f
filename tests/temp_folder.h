#pragma once
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace weft::test {

/// A new folder that is removed with its contents at the end of the scope.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    path_ = (std::filesystem::temp_directory_path() /
             ("weft_test_" + std::to_string(::getpid()) + "_" + std::to_string(count++)))
                .string();
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace weft::test
