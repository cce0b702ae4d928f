#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/nn/gpt.h"

namespace weft::nn {

void GptConfig::validate() const {
  check(layers >= 1, "gpt: layers must be at least 1, got {}", layers);
  check(heads >= 1, "gpt: heads must be at least 1, got {}", heads);
  check(dim >= 1, "gpt: dim must be at least 1, got {}", dim);
  check(dim % heads == 0, "gpt: dim {} must be a multiple of heads {}", dim, heads);
  check(kv_heads >= 0, "gpt: kv_heads must be at least 0, got {}", kv_heads);
  check(heads % kv_head_count() == 0, "gpt: heads {} must be a multiple of kv_heads {}", heads,
        kv_heads);
  check(arch != Arch::llama || head_dim() % 2 == 0,
        "gpt: dim / heads must be even for rotary positions, got {} / {} = {}", dim, heads,
        head_dim());
  check(ffn >= 0, "gpt: ffn must be at least 0, got {}", ffn);
  check(seq >= 1, "gpt: seq must be at least 1, got {}", seq);
  check(vocab >= 1, "gpt: vocab must be at least 1, got {}", vocab);
  check(dropout >= 0 && dropout < 1, "gpt: dropout must be in [0, 1), got {}", dropout);
  check(rope_theta > 0, "gpt: rope_theta must be above 0, got {}", rope_theta);
  check(norm_eps >= 0, "gpt: norm_eps must be at least 0, got {}", norm_eps);
  check(window >= 0, "gpt: window must be at least 0, got {}", window);
  check(mtp.depths >= 0, "gpt: mtp depths must be at least 0, got {}", mtp.depths);
  check(
      mtp.depths < seq,
      "gpt: mtp depths must be below seq {}, as depth d predicts the token d + 1 places on, got {}",
      seq, mtp.depths);
  check(mtp.weight >= 0 && std::isfinite(mtp.weight), "gpt: mtp weight must be at least 0, got {}",
        mtp.weight);
}

std::int64_t GptConfig::ffn_dim() const {
  if (ffn) return ffn;
  if (arch == Arch::gpt2) return 4 * dim;
  return (8 * dim + 95) / 96 * 32;  // 8/3 dim, rounded up to a multiple of 32
}

std::int64_t GptConfig::parameter_count() const {
  const bool gpt2 = arch == Arch::gpt2;
  const std::int64_t q = heads * head_dim(), kv = kv_head_count() * head_dim(), f = ffn_dim();
  const std::int64_t norm = gpt2 ? 2 * dim : dim;
  std::int64_t block = dim * (q + 2 * kv) + q * dim;  // qkv, proj
  block += gpt2 ? 2 * dim * f : 3 * dim * f;
  if (gpt2) block += q + 2 * kv + dim + f + dim;  // their biases
  if (qk_norm) block += 2 * head_dim();
  block += 2 * norm;
  const std::int64_t depths = mtp.repeated ? std::min<std::int64_t>(mtp.depths, 1) : mtp.depths;
  return vocab * dim * (tied() ? 1 : 2) + (gpt2 ? seq * dim : 0) + layers * block + norm +
         depths * (block + 2 * dim * dim + 3 * norm);
}

double GptConfig::flops_per_token() const {
  const std::int64_t q = heads * head_dim(), kv = kv_head_count() * head_dim(), f = ffn_dim();
  const std::int64_t mlp = (arch == Arch::gpt2 ? 2 : 3) * dim * f;
  const std::int64_t all =
      layers + mtp.depths;  // each depth has a block, a projection and the head
  const std::int64_t products = all * (dim * (q + 2 * kv) + q * dim + mlp) + vocab * dim +
                                mtp.depths * (2 * dim * dim + vocab * dim);
  // A token attends to (seq + 1) / 2 others on average; with a window, the first ones to fewer.
  const double n = static_cast<double>(seq);
  const double w = window ? std::fmin(static_cast<double>(window), n) : n;
  const double attended = (w * (w + 1) / 2 + (n - w) * w) / n;
  const double attention = 2.0 * static_cast<double>(all * q) * attended;  // scores and values
  return 6.0 * (static_cast<double>(products) + attention);
}

}  // namespace weft::nn
