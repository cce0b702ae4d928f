#include "weft/autograd/fp8_rows.h"

#include <utility>

#include "weft/core/dispatch.h"

namespace weft::fp8 {
namespace {

// Found by the number of the recorded tensor, which no other tensor of the process gets: a handle
// would keep its memory.
struct Known {
  std::uint64_t id = 0;
  std::uint32_t version = 0;
  RoundedRows rows = {};
  Tensor of = {};  ///< the delayed scales that the codes have been made with
  std::uint32_t of_version = 0;
  bool is(const Tensor& x) const {
    return rows.wanted() && id == x.impl()->tape_id && version == x.version();
  }
};

constexpr int kKnown = 4;  // as many tensors as an MoE layer makes before their products
struct Memory {
  Known items[kKnown];
  int next = 0;
};
thread_local Memory memory;

Known* find(const Tensor& x) {
  if (!Autocast::current() || x.impl()->leaf) return nullptr;
  for (Known& k : memory.items)
    if (k.is(x)) return &k;
  return nullptr;
}

void add(Known known) {
  memory.items[memory.next] = std::move(known);
  memory.next = (memory.next + 1) % kKnown;
}

// Whether the codes are those that a product would make.
bool made_for(const Known& k, const Recipe& recipe, const Delayed& delayed) {
  if (!k.rows.codes.defined()) return false;
  if (recipe.scaling == Scaling::delayed)
    return k.of.defined() && delayed.defined() && k.of.impl() == delayed.scale.impl() &&
           k.of_version == delayed.scale.version();
  return recipe.scaling == Scaling::block && !k.rows.scale.defined() &&
         k.rows.how.epsilon == recipe.numbers().epsilon;
}

}  // namespace

constinit thread_local const LayerState* ProducesFor::reader_ = nullptr;

RoundedRows rows_for(const Tensor& y, bool recorded) {
  const Recipe* const recipe = Autocast::current();
  if (!recorded || !recipe || y.numel() == 0 || y.ndim() == 0 ||
      (y.dtype() != DType::f32 && y.dtype() != DType::bf16))
    return {};
  const std::int64_t columns = y.dim(-1), rows = y.numel() / columns;
  const auto f32 = [&](const Shape& s) { return Tensor::empty(s, DType::f32, y.device()); };
  RoundedRows out;
  if (recipe->scaling != Scaling::block) out.amax = f32({rows});
  const LayerState* const reader = ProducesFor::reader();
  if (!reader || recipe->scaling == Scaling::current) return out;
  if (recipe->scaling == Scaling::block) {
    out.inverse = f32({rows, fp8_blocks(columns)});
    out.how = recipe->numbers();
  } else {
    if (!reader->delayed.defined()) return out;
    out.scale = f32({1});
    out.inverse = f32({1});
    take_scale(reader->delayed, Operand::x, out.scale, out.inverse);
  }
  out.codes = Tensor::empty({rows, columns}, kForward, y.device());
  return out;
}

void remember_rows(const Tensor& y, const RoundedRows& rows) {
  if (!rows.wanted()) return;
  Known known{.id = y.impl()->tape_id, .version = y.version(), .rows = rows};
  if (rows.scale.defined()) {
    known.of = ProducesFor::reader()->delayed.scale;
    known.of_version = known.of.version();
  }
  add(std::move(known));
}

void rename_rows(const Tensor& y, const Tensor& view) {
  if (Known* const k = find(y)) {
    k->id = view.impl()->tape_id;
    k->version = view.version();
  }
}

Tensor row_amax_of(const Tensor& x) {
  const Known* const k = find(x);
  return k && Autocast::current()->scaling != Scaling::block ? k->rows.amax : Tensor();
}

RoundedRows take_rows(const Tensor& x, const Recipe& recipe, const Delayed& delayed) {
  Known* const k = find(x);
  if (!k) return {};
  RoundedRows out{.amax = recipe.scaling == Scaling::block ? Tensor() : k->rows.amax};
  if (!made_for(*k, recipe, delayed)) return out;
  out = k->rows;
  k->rows.codes = k->rows.scale = k->rows.inverse = {};
  return out;
}

void move_rows(const Tensor& x, const Tensor& y,
               const std::function<void(const Tensor& from, const Tensor& to)>& permute) {
  Known* const k = find(x);
  if (!k) return;
  const std::int64_t rows = y.dim(0);
  const auto moved = [&](const Tensor& from) {
    Tensor to = Tensor::empty({rows, from.dim(1)}, from.dtype(), from.device());
    permute(from, to);
    return to;
  };
  Known known{.id = y.impl()->tape_id, .version = y.version(), .rows = {.how = k->rows.how}};
  if (const Tensor& amax = k->rows.amax; amax.defined())
    known.rows.amax = moved(amax.alias({amax.numel(), 1}, {1, 1}, 0)).alias({rows}, {1}, 0);
  if (RoundedRows& own = k->rows; own.codes.defined()) {
    known.rows.codes = moved(own.codes);
    known.rows.scale = own.scale;
    known.rows.inverse = own.scale.defined() ? own.inverse : moved(own.inverse);
    known.of = k->of;
    known.of_version = k->of_version;
    own.codes = own.scale = own.inverse = {};
  }
  add(std::move(known));
}

Autocast::~Autocast() {
  innermost_ = outer_;
  if (!outer_) memory = {};
}

}  // namespace weft::fp8
