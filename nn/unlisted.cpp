#include "weft/nn/unlisted.h"

#include <cxxabi.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "weft/core/error.h"
#include "weft/nn/module.h"

namespace weft::nn {
namespace {

struct Account {
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, Tensor> parameters;
  std::atomic<bool> used = false;
};
// Never destroyed: modules with static storage end after it would.
Account& account() {
  static Account* const one = new Account;
  return *one;
}

// Calls f(parameters) unless there are none: then a visit costs one load.
template <class F>
void with_unlisted(F f) {
  Account& a = account();
  if (!a.used.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(a.mutex);
  f(a.parameters);
  a.used.store(!a.parameters.empty(), std::memory_order_release);
}

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

/// Lists the modules below the one that it visits.
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

// Reads the memory as words: an ordinary member at any depth, also in an optional or an array, has
// its handles there, and other members have not.
void check_place(const Place& place,
                 const std::unordered_map<const TensorImpl*, Tensor>& unlisted) {
  const auto* const begin =
      static_cast<const unsigned char*>(static_cast<const void*>(place.module));
  for (std::size_t i = 0; i + sizeof(Tensor) <= place.bytes; i += alignof(Tensor)) {
    const TensorImpl* word = nullptr;
    std::memcpy(&word, begin + i, sizeof word);
    const auto found = unlisted.find(word);
    check(found == unlisted.end() || !found->second.requires_grad(),
          "visit: every parameter of {} must be listed, but one of shape {} is not; add it to "
          "visit()",
          place.name + (place.name.empty() ? "" : ", a ") + shown(*place.module),
          found == unlisted.end() ? Shape() : found->second.shape());
  }
}

}  // namespace

void detail::add_unlisted(const Tensor& parameter) {
  Account& a = account();
  const std::lock_guard lock(a.mutex);
  a.parameters.emplace(parameter.impl(), parameter);
  a.used.store(true, std::memory_order_release);
}

void detail::remove_unlisted(const Tensor& listed) {
  with_unlisted([&](auto& parameters) { parameters.erase(listed.impl()); });
}

void detail::release_unlisted() {
  with_unlisted([](auto& parameters) {
    std::erase_if(parameters, [](const auto& p) { return p.first->refs.load() == 1; });
  });
}

NamedTensors detail::trained_parameters(const Module& root, std::size_t bytes) {
  NamedTensors listed = root.named_parameters();
  if (!account().used.load(std::memory_order_acquire)) return listed;
  std::vector<Place> places{{"", &root, bytes}};
  Places below(places);
  const_cast<Module&>(root).visit(below);
  with_unlisted([&](const auto& parameters) {
    for (const Place& place : places) check_place(place, parameters);
  });
  return listed;
}

}  // namespace weft::nn
