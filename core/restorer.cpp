#include "weft/core/restorer.h"

#include <memory>
#include <new>
#include <utility>

#include "weft/core/storage.h"

namespace weft {
namespace {

// Objects that this thread dropped, in size classes of 64 bytes.
struct Recycled {
  static constexpr std::size_t kStep = 64, kClasses = 16;
  static std::size_t class_of(std::size_t bytes) { return (bytes + kStep - 1) / kStep; }
  struct Free {
    Free* next;
  };
  Free* heads[kClasses + 1] = {};
  bool alive = true;
  ~Recycled() {
    alive = false;
    for (Free*& head : heads)
      while (Free* f = head) {
        head = f->next;
        ::operator delete(f);
      }
  }
};
thread_local Recycled recycled;

}  // namespace

void* Restorer::operator new(std::size_t bytes) {
  const std::size_t size = Recycled::class_of(bytes);
  if (size > Recycled::kClasses) return ::operator new(bytes);
  if (Recycled::Free* const f = recycled.heads[size]) {
    recycled.heads[size] = f->next;
    return f;
  }
  return ::operator new(size* Recycled::kStep);
}

void Restorer::operator delete(void* p, std::size_t bytes) {
  const std::size_t size = Recycled::class_of(bytes);
  if (size > Recycled::kClasses || !recycled.alive) return ::operator delete(p);
  recycled.heads[size] = new (p) Recycled::Free{recycled.heads[size]};
}

void release_until_needed(Storage* s, Restorer* restorer) {
  std::unique_ptr<Restorer> own(restorer);
  if (s->shared_empty) return;
  empty_storage(s);
  s->restorer = own.release();
}

namespace {

// A restore that fails, for want of memory for example, can be tried again.
std::unique_ptr<Restorer> restored(Storage* s) {
  std::unique_ptr<Restorer> r(std::exchange(s->restorer, nullptr));
  try {
    if (r) r->restore(*s);
  } catch (...) {
    if (s->released) s->restorer = r.release();
    throw;
  }
  return r;
}

}  // namespace

void restore_storage(Storage* s) { restored(s); }

RestoredScope::RestoredScope(Storage* s) : storage_(s), restorer_(restored(s)) {}

RestoredScope::~RestoredScope() {
  if (restorer_) release_until_needed(storage_, restorer_.release());
}

}  // namespace weft
