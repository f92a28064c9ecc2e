// Parameters: who they are, and how they lie in memory.
//
// The identity of a parameter is (module, main or MTP depth, physical symbol index, role, expert). Initialisation,
// digest, optimizer state and checkpoints use it and nothing else, so that brackets, layouts and fused storage can
// never change a model. Names on disk (Megatron's, Hugging Face's) are views of it (weft/checkpoint).
//
// In memory, parameters that one product uses lie together: q, k, v in one matrix, gate and up, all experts of a layer.
// Such a ParameterTensor is a list of parts, each a box of a parameter (boxes.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/base/shape.h"
#include "weft/grid/layout.h"
#include "weft/model/boxes.h"

namespace weft {

// A closed list; every kind of layer adds its own here.
enum class Role : std::uint8_t {
  // model
  embedding,
  final_norm,
  head,
  // MTP: into each depth; its final norm is final_norm
  mtp_embedding_norm,
  mtp_hidden_norm,
  mtp_projection,
  // every layer
  norm,
  // attention
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  output,
  output_bias,
  q_norm,
  k_norm,
  sinks,
  // multi-latent attention: q and kv through low ranks; without a rank of its own, q is attention's
  q_down,
  q_latent_norm,
  q_up,
  kv_down,  // [kv_rank + rotary_dim, hidden]: the latent, and the part of the keys that all heads share
  kv_latent_norm,
  k_up,
  v_up,
  // sparse attention's indexer
  indexer_q,
  indexer_k,
  indexer_weights,
  indexer_norm,
  indexer_norm_bias,
  // MLP, and experts (with an expert index), and the shared expert
  gate,
  up,
  down,
  gate_bias,
  up_bias,
  down_bias,
  router,
  router_bias,
  expert_bias,  // of the choice alone; no gradient reaches it
  shared_gate,
  shared_up,
  shared_down,
  shared_expert_gate,  // [1, hidden]
  latent_down,         // [latent, hidden], [hidden, latent]: to the experts and back
  latent_up,
  // attention's output gate, one row an element of the output
  output_gate,
  // Mamba-2: parts of the input projection, of the convolution, and of the scan
  z,
  x,
  B,
  C,
  dt,
  conv_x,
  conv_B,
  conv_C,
  conv_x_bias,
  conv_B_bias,
  conv_C_bias,
  A_log,
  dt_bias,
  D,
  mixer_norm,
  // gated delta net: q, k, v, z, output, A_log, dt_bias and mixer_norm as above
  beta,
  alpha,
  conv_q,
  conv_k,
  conv_v,
};
std::string_view name_of(Role role);

struct ParameterIdentity {
  int depth = 0;      // 0: main part; d: MTP depth d
  int physical = -1;  // symbol index within its part; -1: not in a layer
  Role role = Role::embedding;
  int expert = -1;  // global index; -1: none
  std::string module = "language";

  auto operator<=>(const ParameterIdentity&) const = default;
};
// "language.main.3.gate.7": the key of initialisation, digest and manifests.
std::string to_text(const ParameterIdentity& identity);

// How a parameter begins.
struct Init {
  enum class Kind : std::uint8_t {
    normal,
    constant,
    uniform,      // between value and high
    log_uniform,  // the logarithm of such a number
    step_bias,    // what softplus makes a step size of, the step's logarithm uniform between those of value and high
  } kind = Kind::normal;
  double value = 0;  // standard deviation, the constant, or the lower end
  double high = 0;
};

struct ParameterPart {
  ParameterIdentity identity;
  Shape shape;     // of the whole parameter
  Box box;         // the elements that are here
  BoxPlace place;  // and where they lie in the tensor
  Init init;
  int tensor_dim = -1;  // tensor ranks divide this dim; -1: each of them holds the same

  std::int64_t elements() const { return box.extent.elements(); }
  BoxRuns runs() const { return BoxRuns(shape, box, place); }
};

struct ParameterTensor {
  std::string name;  // of this storage, for plans and errors: "main.3.qkv"
  Shape shape;
  // They tile the tensor, or of a divided one what lies within it (Module::shards). A vocabulary that tensor ranks cannot
  // divide evenly leaves rows of the last ones without a part.
  std::vector<ParameterPart> parts;
  Role role = Role::embedding;    // of the first of them; also where a rank's part of a divided tensor has none
  bool accumulate_dtype = false;  // kept in the accumulation dtype whatever the model computes in (router)
  bool decays = true;             // false for one-dimensional parameters
  bool expert = false;            // holds experts' parameters
  Placement placement;
  std::int64_t parameters = 0;  // elements of the logical parameters of its parts, here and on other ranks
  bool trained = true;          // false: no gradient reaches it, and AdamW does not touch it
  bool copy = false;            // of a tensor that an earlier stage holds too, which counts it
  double balance_rate = 0;      // above 0: changed by counts of the experts' choices, not by a gradient
};

// Writes the part's initial values. They are a pure function of (seed, identity, index in the logical parameter).
void initialise(const ParameterPart& part, std::uint64_t seed, HostTensor& tensor);

void set_to_zero(const ParameterPart& part, HostTensor& tensor);

// Elements of the part, one by one, by their index in the logical parameter.
void each_number(const ParameterPart& part, const HostTensor& tensor,
                 const std::function<void(std::int64_t index, double number)>& visit);
void set_numbers(const ParameterPart& part, HostTensor& tensor,
                 const std::function<double(std::int64_t index)>& number);

}  // namespace weft
