#include "weft/nn/kv_cache.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/nn/gpt_layers.h"

namespace weft::nn {

KvCache::KvCache(std::vector<Entry> entries, std::int64_t batch, std::int64_t capacity, DType dtype,
                 Device device)
    : entries_(std::move(entries)),
      batch_(batch),
      capacity_(capacity),
      dtype_(dtype),
      device_(device) {
  check(batch > 0 && capacity > 0, "kv_cache: batch and capacity must be at least 1, got {} and {}",
        batch, capacity);
}

KvCache::KvCache(const GptConfig& config, std::int64_t batch, std::int64_t capacity, DType dtype,
                 Device device)
    : KvCache(std::vector<Entry>{}, batch, capacity, dtype, device) {
  std::vector<Child<Mixer>> mixers;
  {
    const DeviceScope nothing_allocated(kMeta);
    for (std::int64_t i = 0; i < config.layers; ++i)
      mixers.push_back(mixer_kind(config, i).make(config, Init::constant(0)));
  }
  for (const Child<Mixer>& mixer : mixers)
    entries_.push_back(mixer->cache_entry(batch, capacity, dtype, device));
}

KvCache KvCache::clone() const {
  KvCache copy = *this;
  const NoGradGuard off;
  for (Entry& e : copy.entries_)
    for (Tensor* const t : {&e.tokens.k, &e.tokens.v, &e.state.conv, &e.state.state})
      if (t->defined()) *t = t->clone();
  return copy;
}

void KvCache::check_fits(const Tensor& ids, const Tensor& weight) const {
  check(dtype_ == weight.dtype() && device_ == weight.device(),
        "kv_cache: dtype and device must be those of the model, {} on {}, got {} on {}",
        weight.dtype(), weight.device(), dtype_, device_);
  check(ids.dim(0) == batch_, "kv_cache: batch must be {}, got {}", batch_, ids.dim(0));
  check_room(ids.dim(1));
}

void KvCache::check_room(std::int64_t tokens) const {
  check(length_ + tokens <= capacity_,
        "kv_cache: {} tokens and {} new ones must fit the capacity {}", length_, tokens, capacity_);
}

bool KvCache::has_state() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return e.state.state.defined(); });
}

void KvCache::truncate(std::int64_t length) {
  check(length >= 0 && length <= length_, "kv_cache: length must be in [0, {}], got {}", length_,
        length);
  for (const Entry& e : entries_) {
    const Recurrent& r = e.state;
    if (!r.state.defined() || length == length_) continue;
    check(length == 0,
          "kv_cache: layers with a state forget all tokens or none: length must be 0 or {}, got {}",
          length_, length);
    r.conv.zero_();
    r.state.zero_();
  }
  length_ = length;
}

const KvCache::Recurrent& KvCache::recurrent(int layer) const {
  check(layer >= 0 && layer < static_cast<int>(entries_.size()) &&
            entries_[static_cast<std::size_t>(layer)].state.state.defined(),
        "kv_cache: layer {} keeps no state in this model", layer);
  return entries_[static_cast<std::size_t>(layer)].state;
}

void KvCache::set_recurrent(int layer, const Recurrent& after) {
  const Recurrent& now = recurrent(layer);
  check(after.conv.shape() == now.conv.shape() && after.state.shape() == now.state.shape(),
        "kv_cache: a layer's state must keep its shapes {} and {}, got {} and {}", now.conv.shape(),
        now.state.shape(), after.conv.shape(), after.state.shape());
  entries_[static_cast<std::size_t>(layer)].state = after;
}

KvCache::Pair KvCache::append(int layer, const Tensor& k, const Tensor& v) {
  check(layer >= 0 && layer < static_cast<int>(entries_.size()),
        "kv_cache: layer must be in [0, {}), got {}", entries_.size(), layer);
  const Pair& all = entries_[static_cast<std::size_t>(layer)].tokens;
  check(all.k.defined(), "kv_cache: layer {} keeps no keys and values in this model", layer);
  const std::int64_t tokens = k.dim(1);
  const Shape keys{batch_, tokens, all.k.dim(2), all.k.dim(3)};
  const Shape values{batch_, tokens, all.v.dim(2), all.v.dim(3)};
  check(k.shape() == keys && v.shape() == values,
        "kv_cache: k and v must have shapes {} and {}, got {} and {}", keys, values, k.shape(),
        v.shape());
  check_room(tokens);
  const NoGradGuard off;
  all.k.narrow(1, length_, tokens).copy_(k);
  all.v.narrow(1, length_, tokens).copy_(v);
  return {all.k.narrow(1, 0, length_ + tokens), all.v.narrow(1, 0, length_ + tokens)};
}

void KvCache::advance(std::int64_t tokens) {
  check(tokens >= 0, "kv_cache: tokens must be at least 0, got {}", tokens);
  check_room(tokens);
  length_ += tokens;
}

}  // namespace weft::nn
