#include "weft/examples/common/sample.h"

#include <algorithm>

#include "weft/autograd/tape.h"
#include "weft/core/random.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/sampling.h"

namespace weft::examples {

std::vector<std::int32_t> sample_tokens(nn::Gpt& model, std::int32_t first, std::int64_t count,
                                        std::uint64_t seed) {
  struct EvalScope {
    explicit EvalScope(nn::Gpt& m) : gpt(m) { gpt.eval(); }
    ~EvalScope() { gpt.train(); }
    nn::Gpt& gpt;
  };
  const EvalScope eval(model);
  const NoGradGuard off;
  const RandomScope random({.seed = seed});  // leaves the run's own random numbers as they are
  const Tensor& table = model.embed.weight;
  const std::int64_t places = std::min(count, model.config.seq - model.config.mtp.depths);
  nn::KvCache cache(model.config, 1, places, table.dtype(), table.device());
  std::vector<std::int32_t> text{first};
  for (std::int64_t i = 0; i < places; ++i) {
    const Tensor ids = Tensor::from(std::span<const std::int32_t>(&text.back(), 1), {1, 1});
    const Tensor logits = model.decode(ids.to(table.device()), cache).select(0, 0);
    const RandomKey key{seed, stream_of("sample"), static_cast<std::uint64_t>(i)};
    text.push_back(static_cast<std::int32_t>(
        nn::sample_token(logits.to(kCpu), {.temperature = 0.8, .top_p = 0.95}, key)));
  }
  text.erase(text.begin());
  return text;
}

std::string sample_text(const std::vector<std::int32_t>& tokens,
                        const tokenizer::Tokenizer* tokenizer) {
  std::string text;
  for (const std::int32_t t : tokens)
    if (!tokenizer)
      text += (text.empty() ? "" : " ") + std::to_string(t);
    else if (!tokenizer->has(t))
      text += '?';  // --vocab may be larger
    else if (!tokenizer->is_special(t))
      text += tokenizer->bytes_of(t);
  return text;
}

}  // namespace weft::examples
