#pragma once
#include <cstddef>
#include <memory>

namespace weft {

struct Storage;

/// How the contents of a storage that was released for a while come back: they are computed again,
/// or read from where they were stored. Objects are recycled, so that a warm step allocates none.
class Restorer {
 public:
  Restorer() = default;
  Restorer(const Restorer&) = delete;
  virtual ~Restorer() = default;
  /// Gives `s` a block with the contents it had when it was released.
  virtual void restore(Storage& s) = 0;

  static void* operator new(std::size_t bytes);
  static void operator delete(void* p, std::size_t bytes);
};

/// Releases the block of `s`, which may have any number of owners, until restore_storage(). Takes
/// over the restorer, which dies with the storage if it is never needed, and at once for the
/// storage that tensors without elements share.
void release_until_needed(Storage* s, Restorer* restorer);
/// Brings the contents back. Does nothing unless release_until_needed() has released them.
void restore_storage(Storage* s);

/// Brings the contents back until the end of the scope, if release_until_needed() has released
/// them; the same restorer then waits again.
class RestoredScope {
 public:
  explicit RestoredScope(Storage* s);
  ~RestoredScope();
  RestoredScope(const RestoredScope&) = delete;

 private:
  Storage* const storage_;
  std::unique_ptr<Restorer> restorer_;
};

}  // namespace weft
