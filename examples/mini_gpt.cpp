// A GPT built from its parts: model, training loop and sampling in one file.
//
//   mini_gpt TEXT_FILE [STEPS]        (default: 300 steps, about a minute on two cores)
//
// It reads the file as bytes, trains on random windows of it, and prints a sample. The full trainer
// (examples/train_gpt.cpp) adds evaluation, checkpoints, resume, metrics and all options.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "weft/data/text.h"
#include "weft/weft.h"

using namespace weft;

constexpr std::int64_t kVocab = 256, kSeq = 128, kDim = 128, kHeads = 4, kLayers = 4, kBatch = 16;
constexpr std::int64_t kHeadDim = kDim / kHeads;

// x (B, T, C) -> (B, T, C): each token attends to itself and earlier tokens.
struct SelfAttention : nn::Module {
  nn::Linear qkv, proj;
  SelfAttention() : qkv(kDim, 3 * kDim), proj(kDim, kDim) {}

  Tensor operator()(const Tensor& x) const {
    const std::int64_t B = x.dim(0), T = x.dim(1);
    const TensorList parts = qkv(x).view({B, T, 3 * kHeads, kHeadDim}).split(kHeads, 2);
    const Tensor y = attention(parts[0], parts[1], parts[2], {.causal = true});  // (B, T, H, D)
    return proj(y.reshape({B, T, kDim}));
  }
  void visit(nn::Visitor& v) override {
    v("qkv", qkv);
    v("proj", proj);
  }
};

// Pre-norm block: x += attention(norm(x));  x += mlp(norm(x)).
struct Block : nn::Module {
  nn::LayerNorm norm1, norm2;
  SelfAttention attn;
  nn::Linear up, down;
  Block() : norm1(kDim), norm2(kDim), up(kDim, 4 * kDim), down(4 * kDim, kDim) {}

  Tensor operator()(Tensor x) const {
    x = x + attn(norm1(x));
    return x + down(gelu(up(norm2(x))));
  }
  void visit(nn::Visitor& v) override {
    v("norm1", norm1);
    v("attn", attn);
    v("norm2", norm2);
    v("up", up);
    v("down", down);
  }
};

// ids (B, T) -> logits (B, T, vocab)
struct MiniGpt : nn::Module {
  nn::Embedding tokens, positions;
  std::vector<Block> blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  MiniGpt()
      : tokens(kVocab, kDim),
        positions(kSeq, kDim),
        blocks(kLayers),
        norm(kDim),
        head(kDim, kVocab, {.bias = false}) {
    head.weight = tokens.weight;  // tied: one tensor, whose gradient is the sum of both uses
  }

  Tensor operator()(const Tensor& ids) const {
    const Tensor where = Tensor::arange(0, double(ids.dim(1)), 1, DType::i32);
    Tensor x = tokens(ids) + positions(where);
    for (const Block& block : blocks) x = block(x);
    return head(norm(x));
  }
  void visit(nn::Visitor& v) override {
    v("tokens", tokens);
    v("positions", positions);
    v("blocks", blocks);
    v("norm", norm);
    v("head", head);
  }
};

struct Batch {
  Tensor inputs, targets;  // (B, T) i32; targets are the inputs shifted by one byte
};

// Random windows of the text.
Batch random_batch(const std::string& text, std::uint64_t step) {
  Batch batch{Tensor::empty({kBatch, kSeq}, DType::i32), Tensor::empty({kBatch, kSeq}, DType::i32)};
  const RandomKey key{1, stream_of("batch"), step * kBatch};
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const std::size_t start =
        random_bits(key, static_cast<std::uint64_t>(b)) % (text.size() - kSeq);
    for (std::int64_t t = 0; t < kSeq; ++t) {
      const char* at = text.data() + start + static_cast<std::size_t>(t);
      batch.inputs.data<std::int32_t>()[b * kSeq + t] = static_cast<unsigned char>(at[0]);
      batch.targets.data<std::int32_t>()[b * kSeq + t] = static_cast<unsigned char>(at[1]);
    }
  }
  return batch;
}

std::string sample(const MiniGpt& model, std::string text, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string tail = text.size() > kSeq ? text.substr(text.size() - kSeq) : text;
    const auto length = static_cast<std::int64_t>(tail.size());
    const Tensor ids = Tensor::empty({1, length}, DType::i32);
    for (std::int64_t t = 0; t < length; ++t)
      ids.data<std::int32_t>()[t] = static_cast<unsigned char>(tail[static_cast<std::size_t>(t)]);
    const Tensor last = model(ids).select(0, 0).select(0, length - 1);
    const std::int64_t next =
        nn::sample_token(last, {.temperature = 0.8, .top_k = 40}, next_random_key());
    text += static_cast<char>(next);
  }
  return text;
}

int main(int argc, char** argv) try {
  check(argc == 2 || argc == 3, "usage: mini_gpt TEXT_FILE [STEPS]");
  const std::string text = data::read_text({argv[1]});
  check(text.size() > kSeq, "the text must be longer than {} bytes, got {}", kSeq, text.size());
  char* end = nullptr;
  const long steps = argc == 3 ? std::strtol(argv[2], &end, 10) : 300;
  check(steps >= 1 && (end == nullptr || *end == '\0'),
        "STEPS must be a number of at least 1, got '{}'", argv[argc - 1]);

  MiniGpt model;
  nn::init(model, 1);
  optim::AdamW opt(model, {.lr = 2e-3, .beta2 = 0.95, .weight_decay = 0.1});
  std::printf("%lld parameters\n", static_cast<long long>(model.parameter_count()));

  for (long step = 0; step < steps; ++step) {
    const Batch batch = random_batch(text, static_cast<std::uint64_t>(step));
    Tape tape;
    const Tensor loss = cross_entropy(model(batch.inputs), batch.targets);
    loss.backward();
    optim::clip_grad_norm(model.named_parameters(), 1.0);
    opt.step();
    opt.zero_grad();
    if (step % 20 == 0 || step + 1 == steps)
      std::printf("step %4ld  loss %.4f\n", step, loss.item());
  }
  std::printf("%s\n", sample(model, "It is ", 300).c_str());
  return 0;
} catch (const Error& e) {
  std::fprintf(stderr, "mini_gpt: %s\n", e.what());
  return static_cast<int>(e.fault());
}
