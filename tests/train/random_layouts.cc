#include "tests/train/random_layouts.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "tests/base/dice.h"
#include "tests/plan/in_segments.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr int experts = 8;

class Words {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    words_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  std::string text() const { return join(words_, " "); }

 private:
  std::vector<std::string> words_;
};

// Which kinds of layers a pattern has: attention of one family, and any of the others.
struct Kinds {
  bool latent = false;
  std::string mixers;
};

std::string random_items(Dice& dice, const Kinds& kinds, int most) {
  const auto mixer = [&] { return kinds.mixers[static_cast<std::size_t>(dice.below(kinds.mixers.size()))]; };
  std::string items;
  for (int i = dice.between(1, most); i > 0; --i) {
    switch (dice.below(4)) {
      case 0:
        items += fmt::format("[{}E]", mixer());
        break;
      case 1:
        items += fmt::format("[{}{}{}]", mixer(), dice.yes() ? "-" : "", dice.of({'E', '-'}));
        break;
      case 2:
        items += 'E';
        break;
      default:
        items += dice.yes() ? mixer() : '-';
    }
  }
  return items;
}

std::string random_pattern(Dice& dice) {
  Kinds kinds;
  kinds.latent = dice.once_in(3);
  kinds.mixers = kinds.latent ? "++D" : "***";
  kinds.mixers += dice.of({"M", "G", "MG", ""});
  std::string pattern = random_items(dice, kinds, 4);
  if (!dice.once_in(4)) return pattern;
  const std::string further = "/" + random_items(dice, kinds, 2);
  return pattern + further + (dice.yes() ? further : "");
}

// context: context ranks divide the heads of Mamba layers, and an indexer does not learn on them.
void add_model(Words& words, Dice& dice, const std::string& pattern, bool context) {
  const auto has = [&](std::string_view layers) { return pattern.find_first_of(layers) != std::string::npos; };
  words.add("--pattern {} --hidden-size 16 --vocab-size {} --make-vocab-size-divisible-by 1", pattern,
            random_layout_vocabulary);
  words.add("--init-method-std 0.2");
  if (has("*+D")) words.add("--num-attention-heads 4");
  if (has("*")) {
    words.add("--num-query-groups {}", dice.of({1, 2, 4}));
    if (dice.once_in(4)) words.add("--qk-layernorm");
    if (dice.once_in(4)) words.add("--softmax-type learnable");
    if (dice.once_in(4)) words.add("--window-size 5");
    if (dice.once_in(4)) words.add("{}", dice.of({"--add-qkv-bias", "--attention-output-gate"}));
  }
  if (has("+D")) words.add("--q-lora-rank 8 --kv-lora-rank 8 --qk-head-dim 4 --qk-pos-emb-head-dim 2 --v-head-dim 4");
  if (has("D"))
    words.add("--dsa-indexer-n-heads 4 --dsa-indexer-head-dim 4 --dsa-indexer-topk 5 --dsa-indexer-loss-coeff {}",
              context ? "0" : dice.of({"0", "0.5"}));
  if (has("M"))
    words.add("--mamba-state-dim 4 --mamba-head-dim 8 --mamba-num-heads 4 --mamba-num-groups {} --mamba-chunk-size 4",
              context ? 4 : dice.of({1, 2, 4}));
  if (has("G"))
    words.add("--linear-num-value-heads 4 --linear-num-key-heads {} --linear-value-head-dim 8 --linear-key-head-dim 4",
              dice.of({2, 4}));
  if (has("-")) words.add("--ffn-hidden-size 24");
  if (has("E")) {
    words.add("--num-experts {} --moe-ffn-hidden-size 8 --moe-router-topk {}", experts, dice.of({2, 2, 3}));
    if (dice.once_in(3)) words.add("--moe-shared-expert-intermediate-size 8");
    if (dice.once_in(4)) words.add("--moe-latent-size 8");
    switch (dice.below(6)) {
      case 0:
        words.add("--moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 0.01");
        break;
      case 1:
        words.add("--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.01");
        break;
      case 2:
        words.add("--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.01");
        break;
      case 3:
        words.add("--moe-router-score-function sigmoid --moe-router-enable-expert-bias");
        break;
      default:
        break;
    }
  }
  if (dice.once_in(4)) words.add("--tie-embeddings");
}

void add_recomputation(Words& words, Dice& dice, const std::string& pattern) {
  if (!dice.once_in(3)) return;
  if (dice.yes()) {
    words.add("--recompute-granularity full --recompute-method {} --recompute-num-layers {}",
              dice.yes() ? "uniform" : "block", dice.between(1, 2));
    return;
  }
  std::vector<std::string> modules{"layernorm"};
  const auto has = [&](std::string_view layers) { return pattern.find_first_of(layers) != std::string::npos; };
  const auto maybe = [&](std::string_view layers, const char* module) {
    if (has(layers) && dice.yes()) modules.emplace_back(module);
  };
  maybe("*+D", "core_attn");
  maybe("+D", "mla_up_proj");
  maybe("-", "mlp");
  maybe("E", "moe_act");
  maybe("G", "gdn_norm_out");
  words.add("--recompute-granularity selective --recompute-modules {}", join(modules, " "));
}

// Ranks of each axis, and how many ranks together hold all experts.
struct Sizes {
  int data = 1, tensor = 1, context = 1, expert_tensor = 1, expert = 1;
  int stages = 1, chunks = 1;                            // of the pipeline, and of each stage
  int ranks() const { return data * tensor * context; }  // of a stage
  int parts() const { return expert_tensor * expert; }
};

Sizes random_sizes(Dice& dice, bool routed, bool context, int stages, int chunks) {
  Sizes s;
  s.stages = stages;
  s.chunks = chunks;
  s.data = std::min(context ? dice.of({1, 1, 2}) : dice.of({1, 2, 2, 4}), 8 / stages);
  s.tensor = std::min(context ? dice.of({1, 1, 2}) : dice.of({1, 1, 2, 2, 4}), 16 / stages / s.data);
  if (context) s.context = s.tensor == 1 && stages == 1 ? dice.of({2, 2, 4}) : 2;
  if (!routed) return s;
  if (dice.yes()) s.expert_tensor = s.tensor;
  while (s.expert < experts && s.ranks() % (2 * s.parts()) == 0 && dice.below(3) > 0) s.expert *= 2;
  return s;
}

void add_layout(Words& words, Words& order, Dice& dice, const Sizes& s, bool routed) {
  words.add("--ranks {}", s.ranks() * s.stages);
  if (s.stages > 1) {
    words.add("--pipeline-model-parallel-size {}", s.stages);
    if (dice.once_in(4)) words.add("--use-tp-pp-dp-mapping");
    if (s.chunks == 1 && dice.yes()) order.add("--pipeline-order zero-bubble");
    if (s.chunks > 1 && dice.once_in(3))
      words.add("--microbatch-group-size-per-virtual-pipeline-stage {}", s.stages + dice.below(2));
  }
  if (s.tensor > 1) {
    words.add("--tensor-model-parallel-size {}", s.tensor);
    if (dice.yes()) words.add("--sequence-parallel");
  }
  if (s.context > 1)
    words.add("--context-parallel-size {} --cp-comm-type {}", s.context, dice.of({"p2p", "all_gather", "a2a"}));
  if (!routed) return;
  words.add("--expert-model-parallel-size {}", s.expert);
  if (s.tensor > 1) words.add("--expert-tensor-parallel-size {}", s.expert_tensor);
}

void add_sharding(Words& words, Dice& dice, const Sizes& s) {
  const char* strategy = dice.of({"", "", "optim", "optim_grads", "optim_grads_params", "optim_grads_params"});
  if (!*strategy) return;
  words.add("--data-parallel-sharding-strategy {}", strategy);
  const bool parts = strategy == std::string_view("optim_grads_params");
  if (s.data % 2 == 0 && s.ranks() / 2 % s.parts() == 0 && dice.once_in(3)) {
    words.add("--num-distributed-optimizer-instances 2");
    if (parts && dice.yes()) words.add("--outer-dp-sharding-strategy optim");
  }
  if (parts && dice.once_in(3))
    words.add("{}", dice.of({"--fsdp-double-buffer", "--no-megatron-fsdp-enable-fine-grained-param-gather"}));
}

}  // namespace

RandomLayout random_layout(std::uint64_t seed) {
  Dice dice(seed, "layout");
  Words words, order;
  const int stages = dice.of({1, 1, 2, 2, 4}), chunks = stages > 1 ? dice.of({1, 1, 2, 3}) : 1;
  const std::string pattern = in_segments(random_pattern(dice), stages * chunks, dice);
  const bool routed = pattern.find('E') != std::string::npos;
  const bool context = dice.once_in(3);
  add_model(words, dice, pattern, context);
  const Sizes sizes = random_sizes(dice, routed, context, stages, chunks);
  add_layout(words, order, dice, sizes, routed);
  const int micro_batches = dice.between(1, stages > 1 ? 6 : 3), batch = dice.between(1, 2);
  words.add("--seq-length 16 --micro-batch-size {} --global-batch-size {}", batch, batch * micro_batches * sizes.data);
  if (dice.once_in(4)) {
    words.add("--reset-attention-mask --eod-mask-loss");
    if (dice.yes()) words.add("--calculate-per-token-loss");
    if (pattern.find_first_of("*+D") != std::string::npos && dice.yes()) words.add("--reset-position-ids");
  }
  add_sharding(words, dice, sizes);
  add_recomputation(words, dice, pattern);
  if (dice.once_in(6)) words.add("--optimizer sgd");
  if (dice.once_in(6)) words.add("--clip-grad 0");

  const bool weave = sizes.parts() > 1 && micro_batches > 1 && dice.yes();
  if (weave) order.add("--overlap-moe-expert-parallel-comm");
  if ((weave || stages > 1) && dice.yes()) order.add("--delay-wgrad-compute");
  if (sizes.parts() > 1 && !weave && dice.yes()) order.add("--overlap-dispatch-backward-with-experts-wgrad");
  if (dice.once_in(3)) order.add("--overlap-optimizer");
  return {words.text(), order.text()};
}

}  // namespace weft
