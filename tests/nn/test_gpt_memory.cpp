// A warm training step requests no memory from the heap or the system.
#include <doctest/doctest.h>

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"

namespace weft::gpt_memory_test {

namespace {

// The f32 size stays below the threshold for oneDNN, which allocates its own memory. The f64 size,
// whose products are all in-tree, is large enough for several threads and the shared block cache.
struct Size {
  std::int64_t dim, seq, batch;
  DType dtype;
};
constexpr Size kSizes[] = {{16, 8, 2, DType::f32}, {64, 64, 4, DType::f64}};

enum class Loss { fused, whole_logits, with_mtp, with_experts, with_delta, with_latents };

Tensor loss_of(const nn::Gpt& model, const Tensor& ids, Loss loss) {
  if (loss == Loss::with_mtp || loss == Loss::with_experts) return model.losses(ids, ids).total();
  return loss == Loss::fused ? model.loss(model.hidden(ids), model.head, ids)
                             : model.loss(model(ids), ids);
}

void check_steady(const Size& size, nn::Arch arch, nn::Recompute recompute, Loss kind) {
  const long news_at_start = test::news.load();
  nn::Gpt model(
      {.arch = arch,
       .layers = 2,
       .heads = 2,
       .dim = size.dim,
       .seq = size.seq,
       .vocab = 11,
       .dropout = 0.1,
       .attention = kind == Loss::with_latents ? nn::AttentionKind::mla : nn::AttentionKind::mha,
       .pattern = kind == Loss::with_delta ? "da" : "",
       .recompute = recompute,
       .mtp = {.depths = kind == Loss::with_mtp ? 2 : 0},
       .moe = {.experts = kind == Loss::with_experts ? 4 : 0,
               .router = {.expert_bias = false, .balance = {{nn::Balance::aux, 0.01}}},
               .shared_ffn = 8}});
  model.to(size.dtype);
  CHECK(test::news.load() > news_at_start);  // the counter works: building a model allocates
  optim::AdamW opt(model.named_parameters());
  const NamedTensors parameters = model.named_parameters();
  const Tensor ids = test::random({size.batch, size.seq}, 1, DType::i32);
  long news = 0;
  std::int64_t system = 0;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const long news_before = test::news.load();
    const std::int64_t system_before = memory_stats().system_allocs;
    const RandomScope scope({.seed = 1, .step = step});
    Tape tape;
    const Tensor loss = loss_of(model, ids, kind);
    loss.backward();
    opt.step(optim::measure_clip(parameters, 1));
    opt.zero_grad();
    if (step < 3) continue;
    news += test::news.load() - news_before;
    system += memory_stats().system_allocs - system_before;
  }
  CHECK(news == 0);
  CHECK(system == 0);
}

}  // namespace

TEST_CASE("gpt: from the third step on a step allocates nothing") {
  for (const Size& size : kSizes)
    for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
      for (const nn::Recompute recompute :
           {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
        for (const Loss kind : {Loss::fused, Loss::whole_logits, Loss::with_mtp, Loss::with_experts,
                                Loss::with_delta, Loss::with_latents}) {
          if (kind == Loss::with_latents && arch == nn::Arch::gpt2) continue;
          CAPTURE(size.dim);
          CAPTURE(static_cast<int>(arch));
          CAPTURE(static_cast<int>(recompute));
          CAPTURE(static_cast<int>(kind));
          check_steady(size, arch, recompute, kind);
        }
}

}  // namespace weft::gpt_memory_test
