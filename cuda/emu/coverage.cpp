// Records which kernels the tests launch. scripts/check_kernels.py looks up the names later:
// kernels are local to their files, so only the symbol table on disk has them.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "weft/cuda/emu/device.h"

namespace weft::emu {

void note_launch(const void* kernel) {
  static const char* const path = std::getenv("WEFT_EMU_KERNELS");
  if (!path) return;
  static std::mutex mutex;
  static std::set<const void*> seen;
  const std::lock_guard lock(mutex);
  Dl_info info;
  if (!seen.insert(kernel).second || !dladdr(kernel, &info)) return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s %jx\n", info.dli_fname,
                 static_cast<std::uintmax_t>(static_cast<const char*>(kernel) -
                                             static_cast<const char*>(info.dli_fbase)));
    std::fclose(file);
  }
}

}  // namespace weft::emu
