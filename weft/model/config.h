// The sizes and options of a language model, for every kind of layer. No layout, no schedule.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/device/operations/activation.h"
#include "weft/device/operations/attention.h"
#include "weft/device/operations/balance.h"
#include "weft/device/operations/router.h"
#include "weft/pattern/pattern.h"

namespace weft {

// How queries and keys are rotated by their position. Formulas: docs/numerics.md.
struct RopeSpec {
  enum class Scaling : std::uint8_t { none, linear, llama3, yarn } scaling = Scaling::none;
  bool enabled = true;
  double base = 10000;
  double fraction = 1.0;  // of head_dim that rotates, from its first element on
  RotaryStyle style = RotaryStyle::half_split;
  double factor = 1;
  double original_positions = 0;                 // llama3, yarn
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;          // yarn
  double magnitude = 1;                          // cosine and sine are multiplied by it (yarn)
  bool truncate = true;                          // yarn
};

struct AttentionSpec {  // `*`
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0;  // 0: head_dim^-1/2
  bool qkv_bias = false, output_bias = false;
  bool qk_norm = false;
  bool sinks = false;        // one more logit per head in the softmax's denominator
  bool output_gate = false;  // the output is multiplied by the sigmoid of another projection
  std::int64_t window = 0;   // 0: none
  RopeSpec rope;
};

struct IndexerSpec {  // `D`: chooses the keys that a query sees
  std::int64_t heads = 0, dim = 0, topk = 0;
  double loss_factor = 0;  // of its own loss, the mean over tokens; 0: not trained
  double norm_epsilon = 1e-6;
};

struct LatentAttentionSpec {  // `+`, `D`
  std::int64_t heads = 0;
  std::int64_t q_rank = 0;                                   // 0: queries are projected directly
  std::int64_t kv_rank = 0;                                  // width of the latent
  std::int64_t head_dim = 0, rotary_dim = 0, value_dim = 0;  // of a query or key: unrotated, rotated; of a value
  double scale = 0;                                          // 0: (head_dim + rotary_dim)^-1/2
  double norm_epsilon = 0;                                   // of the latents' norms; 0: the model's
  RopeSpec rope{.style = RotaryStyle::interleaved};
  IndexerSpec indexer;  // `D`
};

struct MlpSpec {  // `-`
  std::int64_t ffn = 0;
  ActivationSpec activation;
  bool bias = false;
};

// How the load of experts is balanced. The losses are coefficients; 0: none. Formulas: docs/numerics.md.
struct BalanceSpec {
  double aux_loss = 0, sequence_aux_loss = 0, global_aux_loss = 0, z_loss = 0;
  double bias_update_rate = 0;  // of ExpertsSpec::expert_bias; 0: not updated
  double capacity_factor = 0;   // an expert takes at most ceil(T k / E * factor) tokens of a micro-batch; 0: all
  DropChoices::Policy drop_policy = DropChoices::Policy::probabilities;
  bool pad_to_capacity = false;
  bool forced = false;  // routers compute and learn as usual, but fixed random numbers replace their logits
  bool any_loss() const { return aux_loss > 0 || sequence_aux_loss > 0 || global_aux_loss > 0 || z_loss > 0; }
};

struct ExpertsSpec {  // `E`
  std::int64_t experts = 0, ffn = 0;
  RouterSpec router;
  ActivationSpec activation;
  std::int64_t shared_ffn = 0;  // 0: no shared expert
  bool bias = false;            // of the experts' two products
  bool router_bias = false;     // added to the logits
  bool expert_bias = false;     // added to the scores for the choice only; not trained
  BalanceSpec balance;
  std::int64_t latent = 0;   // width of the tokens that experts receive; 0: hidden
  bool shared_gate = false;  // the shared expert's output is multiplied by sigmoid(x w)
};

struct MambaSpec {  // `M`
  std::int64_t heads = 0, head_dim = 0, groups = 1, state = 0;
  std::int64_t taps = 4, chunk = 128;  // of the convolution; tokens per chunk of the scan
  bool conv_bias = true;
  bool norm_by_group = true;  // the gated norm: within each group, or over the whole width
  double step_least = 0, step_most = std::numeric_limits<double>::infinity();
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t channels() const { return width() + 2 * groups * state; }  // of the convolution
};

struct DeltaNetSpec {                                                // `G`
  std::int64_t heads = 0, key_heads = 0, head_dim = 0, key_dim = 0;  // heads, head_dim: of values
  std::int64_t taps = 4, chunk = 64;
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t key_width() const { return key_heads * key_dim; }
  std::int64_t channels() const { return 2 * key_width() + width(); }
};

struct ModelConfig {
  std::string pattern;  // see weft/pattern
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;         // ids are below it
  std::int64_t padded_vocabulary = 0;  // rows of embedding and head; 0: vocabulary
  double norm_epsilon = 1e-5;
  bool zero_centred_norms = false;
  bool tied_embeddings = false;
  AttentionSpec attention;
  LatentAttentionSpec latent_attention;
  MlpSpec mlp;
  ExpertsSpec experts;
  double mtp_loss_factor = 0.1;  // of the mean of the MTP depths' losses
  MambaSpec mamba;
  DeltaNetSpec delta_net;
  // Attention layers that differ from `attention`, by physical index in the main part.
  std::map<int, AttentionSpec> attention_at;
  double init_std = 0.02;
  std::int64_t max_positions = 0;  // 0: no limit

  std::int64_t embedding_rows() const { return padded_vocabulary > 0 ? padded_vocabulary : vocabulary; }
  const AttentionSpec& attention_of(int physical, int depth = 0) const;
};

// The dtypes that a run computes in.
struct Precision {
  DType compute = DType::f32;  // weights and activations
  DType accumulate() const {
    return compute == DType::f64 ? DType::f64 : DType::f32;
  }  // gradients, router, loss, moments
  // Of matrices in bf16 models: each product is summed in float, rounded when stored, and exchanged in bf16.
  bool bf16_gradients = false;
  bool float_gradient_parts = false;  // but a rank's parts of them are kept in float, where they are divided over ranks
  DType matrix_gradient() const { return bf16_gradients && compute == DType::bf16 ? DType::bf16 : accumulate(); }
};

// UserError for sizes that do not divide and for contradictory options. It names the fields in backquotes,
// "`experts.router.k` 9: ...", which the command line turns into flags (weft/train/options_fields.h).
void check_config(const ModelConfig& config);

}  // namespace weft
