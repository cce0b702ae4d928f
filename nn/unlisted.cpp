#include "weft/nn/unlisted.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "weft/core/error.h"
#include "weft/nn/module.h"

namespace weft::nn {
namespace {

// One per thread, as models are made, visited and trained on one thread. So ranks neither wait for
// each other nor free each other's parameters; a model that crosses threads is not checked.
constinit thread_local bool closed = false;  // modules with static storage end after the list
struct Unlisted {
  std::unordered_map<const TensorImpl*, Tensor> parameters;
  std::size_t kept = 0;   // entries after the last release
  std::size_t ended = 0;  // modules since then
  ~Unlisted() { closed = true; }
};
thread_local Unlisted unlisted;

bool is_empty() { return closed || unlisted.parameters.empty(); }

// What describe() says, or the name of the class.
std::string shown(const Module& m) {
  std::string text = m.describe();
  if (text != m.Module::describe()) return text;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(m).name(), nullptr, nullptr, &status), std::free);
  return name ? name.get() : text;
}

/// A module in memory.
struct Place {
  std::string name;
  const Module* module;
  std::size_t bytes;
};

/// Collects the modules below the root.
class Places final : public Visitor {
 public:
  explicit Places(std::vector<Place>& out) : out_(out) {}

 protected:
  void on_tensor(const char*, const Slot&) override {}
  void on_module(const char* name, Module& child) override {
    const std::size_t length = prefix_.size();
    prefix_ += name;
    out_.push_back({prefix_, &child, child_bytes()});
    prefix_ += '.';
    child.visit(*this);
    prefix_.resize(length);
  }

 private:
  std::vector<Place>& out_;
  std::string prefix_;
};

// An unlisted parameter with a handle in that memory, or null. Reads the memory as words: an
// ordinary member at any depth, also in an optional or an array, has its handles there.
Tensor unlisted_in(const Place& place) {
  const auto* const begin =
      static_cast<const unsigned char*>(dynamic_cast<const void*>(place.module));
  for (std::size_t i = 0; i + sizeof(Tensor) <= place.bytes; i += alignof(Tensor)) {
    const TensorImpl* word = nullptr;
    std::memcpy(&word, begin + i, sizeof word);
    const auto found = unlisted.parameters.find(word);
    if (found != unlisted.parameters.end() && found->second.requires_grad()) return found->second;
  }
  return {};
}

}  // namespace

void detail::add_unlisted(const Tensor& parameter) {
  if (closed) return;
  // Without a visit nothing else releases: a loop that makes parameters keeps a few at most.
  if (unlisted.parameters.size() >= 2 * unlisted.kept + 8) release_unlisted();
  unlisted.parameters.emplace(parameter.impl(), parameter);
}

void detail::remove_unlisted(const Tensor& listed) {
  if (!is_empty()) unlisted.parameters.erase(listed.impl());
}

void detail::release_unlisted() {
  if (is_empty()) return;
  std::erase_if(unlisted.parameters, [](const auto& p) { return p.first->refs.load() == 1; });
  unlisted.kept = unlisted.parameters.size();
  unlisted.ended = 0;
}

void detail::release_at_end() {
  // Each look at the list is paid for by modules, or a deep model would take quadratic time: its
  // constructors end as many temporaries as there are parameters. The rest of a large list waits
  // for the next visit or parameter.
  constexpr std::size_t kPerModule = 16;
  if (!is_empty() && ++unlisted.ended * kPerModule >= unlisted.parameters.size())
    release_unlisted();
}

NamedTensors detail::trained_parameters(const Module& root, std::size_t bytes) {
  NamedTensors listed = root.named_parameters();
  if (is_empty()) return listed;
  std::vector<Place> places{{"", &root, bytes}};
  Places below(places);
  const_cast<Module&>(root).visit(below);
  for (const Place& place : places)
    if (const Tensor omitted = unlisted_in(place); omitted.defined())
      check(false,
            "visit: every parameter of {} must be listed, but one of shape {} is not; add it to "
            "visit()",
            place.name + (place.name.empty() ? "" : ", a ") + shown(*place.module),
            omitted.shape());
  return listed;
}

}  // namespace weft::nn
