#include "weft/distributed/agree.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::distributed {

std::int64_t from_rank_0(World& world, std::int64_t own) {
  const Tensor t = Tensor::zeros({1}, DType::i64);
  t.data<std::int64_t>()[0] = own;
  world.all().broadcast(t, 0).wait();
  return t.data<std::int64_t>()[0];
}

std::string text_from(World& world, int from, const std::string& own) {
  const Tensor size = Tensor::full({1}, static_cast<double>(own.size()), DType::i64);
  world.all().broadcast(size, from).wait();
  std::string text = own;
  text.resize(static_cast<std::size_t>(size.item_int()));
  const Tensor bytes = Tensor::empty({size.item_int()}, DType::u8);
  std::copy(text.begin(), text.end(), bytes.data<std::uint8_t>());
  world.all().broadcast(bytes, from).wait();
  std::copy_n(bytes.data<std::uint8_t>(), text.size(), text.begin());
  return text;
}

void on_rank_0(World& world, const std::function<void()>& f) {
  std::int64_t fault = 0;  // none
  std::string text;
  if (world.rank() == 0) {
    try {
      f();
    } catch (const Error& e) {
      fault = static_cast<std::int64_t>(e.fault());
      text = e.what();
    }
  }
  fault = from_rank_0(world, fault);
  if (fault != 0) throw Error(text_from(world, 0, text), static_cast<Fault>(fault));
}

}  // namespace weft::distributed
