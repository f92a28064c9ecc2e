// `M`: Mamba-2. [z | x | B | C | dt] = W_in norm(x); [x | B | C] go through the convolution, then the scan; the gated
// norm of the scan's output and z goes through W_out and is added to the residual stream.
//
// T tokens, H hidden, Di = heads * head_dim, N = groups * state. One state per chunk and head is kept for backward;
// states within a chunk are recomputed. Tensor ranks divide heads and groups: those of this rank. Ranks that outnumber the groups
// share them, and have [dt | z | x | B | C] instead. Where the norm is over more columns than a rank has, ranks exchange its sums
// in the middle of the layer.
#include "weft/device/operations.h"
#include "weft/model/layers/convolution.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct Mamba : ResidualBlock {
  MambaSpec spec;  // of this rank's heads and groups
  bool shares_groups = false, divides_norm = false;
  std::int64_t length = 0, normed = 0;  // normed: columns that the norm is over, of all ranks
  Range sums_here;                      // of the norm's sums over all parts of a row, those that this rank adds to
  ValueId squares, all_squares, products, all_products;
  ValueId conv, states, scanned, gate_inverse;
  ValueId dconv, dscanned, dstates, sums;
  Convolution w_conv;
  ParameterValues A_log, dt_bias, D, gate_norm;

  std::int64_t inner() const { return spec.width(); }
  std::int64_t state_width() const { return spec.groups * spec.state; }
  std::int64_t in_width() const { return inner() + spec.channels() + spec.heads; }
  std::int64_t norm_parts() const { return spec.norm_by_group ? spec.groups : 1; }
  // Parts of [z | x | B | C | dt] and of [x | B | C].
  std::int64_t z_column() const { return shares_groups ? spec.heads : 0; }
  std::int64_t dt_column() const { return shares_groups ? 0 : 2 * (inner() + state_width()); }
  Tensor z(const Tensor& all) const { return all.slice_columns(z_column(), inner()); }
  Tensor xbc(const Tensor& all) const { return all.slice_columns(z_column() + inner(), inner() + 2 * state_width()); }
  Tensor dt(const Tensor& all) const { return all.slice_columns(dt_column(), spec.heads); }
  Tensor x_of(const Tensor& xbc) const { return xbc.slice_columns(0, inner()); }
  Tensor B(const Tensor& xbc) const { return xbc.slice_columns(inner(), state_width()); }
  Tensor C(const Tensor& xbc) const { return xbc.slice_columns(inner() + state_width(), state_width()); }
};

// B and C, of which this rank uses one group.
void add_shared_groups(ModuleBuilder& b, const MambaSpec& all, Mamba& v) {
  const std::int64_t H = b.config().hidden, N = all.groups * all.state, n = all.state, Di = v.inner();
  const std::int64_t first = b.tensor_ranks().rank * all.groups / b.tensor_ranks().size * n;
  const Init taps = convolution_init(all.taps);
  const auto whole = [&](Role B, Role C, const Shape& shape, Init init) {
    return std::vector<ParameterPart>{b.part(B, shape, init), b.part(C, shape, init)};
  };
  v.own_columns = v.spec.heads + 2 * Di;
  v.shared_inputs.push_back({{b.parameter("bc_weight", {2 * N, H}, whole(Role::B, Role::C, {N, H}, b.matrix_init()))},
                             {{first, n, v.own_columns}, {N + first, n, v.own_columns + n}}});
  v.w_conv.own = Di;
  v.w_conv.shared_weight =
      b.parameter("bc_conv_weight", {2 * N, all.taps}, whole(Role::conv_B, Role::conv_C, {N, all.taps}, taps));
  if (all.conv_bias)
    v.w_conv.shared_bias = b.parameter("bc_conv_bias", {2 * N}, whole(Role::conv_B_bias, Role::conv_C_bias, {N}, taps));
  v.w_conv.shared = {{first, n, Di}, {N + first, n, Di + n}};
  b.keep_gradient_precise(v.w_conv.shared_weight);
}

void add_parameters(ModuleBuilder& b, const MambaSpec& all, Mamba& v) {
  const MambaSpec& spec = v.spec;
  const std::int64_t H = b.config().hidden, Di = all.width(), N = all.groups * all.state;
  const Init taps = convolution_init(spec.taps);
  const auto part = [&](Role role, const Shape& shape, Init init) { return b.tensor_part(role, shape, 0, init); };
  const auto rows = [&](Role role, std::int64_t count) { return part(role, {count, H}, b.matrix_init()); };
  std::vector<ParameterPart> in, conv{part(Role::conv_x, {Di, spec.taps}, taps)}, biases;
  if (spec.conv_bias) biases = {part(Role::conv_x_bias, {Di}, taps)};
  if (v.shares_groups) {
    in = {rows(Role::dt, all.heads), rows(Role::z, Di), rows(Role::x, Di)};
  } else {
    in = {rows(Role::z, Di), rows(Role::x, Di), rows(Role::B, N), rows(Role::C, N), rows(Role::dt, all.heads)};
    conv.insert(conv.end(), {part(Role::conv_B, {N, spec.taps}, taps), part(Role::conv_C, {N, spec.taps}, taps)});
    if (spec.conv_bias)
      biases.insert(biases.end(), {part(Role::conv_B_bias, {N}, taps), part(Role::conv_C_bias, {N}, taps)});
  }
  const std::int64_t shared = v.shares_groups ? 2 * v.state_width() : 0, channels = spec.channels() - shared;
  v.w_in = {b.parameter("input_weight", {v.in_width() - shared, H}, in)};
  v.w_conv = {b.parameter("conv_weight", {channels, spec.taps}, conv)};
  v.w_conv.length = v.length;
  v.w_conv.boundaries = b.module().boundaries;
  b.keep_gradient_precise(v.w_conv);
  if (spec.conv_bias) v.w_conv.bias = b.parameter("conv_bias", {channels}, biases);
  if (v.shares_groups) add_shared_groups(b, all, v);
  const Shape heads{all.heads}, here{spec.heads};
  v.A_log = b.precise_parameter("A_log", here, {part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", here, {part(Role::dt_bias, heads, {Init::Kind::step_bias, 1e-3, 0.1})});
  v.D = b.precise_parameter("D", here, {part(Role::D, heads, {Init::Kind::constant, 1})});
  // Never zero-centred: no published model does that.
  v.gate_norm = b.parameter("gate_norm_weight", {v.inner()}, {part(Role::mixer_norm, {Di}, {Init::Kind::constant, 1})});
  v.w_out = {
      b.parameter("output_weight", {H, v.inner()}, {b.tensor_part(Role::output, {H, Di}, 1, b.residual_init())})};
}

// The body's heads are those of this context rank.
void divide_heads(ModuleBuilder& b, Mamba& v) {
  MambaSpec& spec = v.spec;
  const std::int64_t Di = v.inner(), N = v.state_width(), heads = spec.heads, groups = spec.groups;
  const auto of = [](std::int64_t count, std::int64_t parts) { return std::pair{count, parts}; };
  const std::vector<HeadSection> channels = sections_of({of(Di, heads), of(N, groups), of(N, groups)}),
                                 inner = sections_of({of(Di, heads)}), each = sections_of({of(heads, heads)});
  v.exchange_heads(b, TokenRanks::all(b.options().layout, b.options().batch, b.options().length),
                   sections_of({of(Di, heads), of(Di, heads), of(N, groups), of(N, groups), of(heads, heads)}), inner);
  const auto rows = [&](ParameterValues& whole, const std::vector<HeadSection>& sections) {
    whole = v.rows_of_heads(b, whole, sections);
  };
  rows(v.w_conv, channels);
  if (v.w_conv.has_bias()) rows(v.w_conv.bias, channels);
  for (ParameterValues* of_heads : {&v.A_log, &v.dt_bias, &v.D}) rows(*of_heads, each);
  rows(v.gate_norm, inner);
  spec.heads /= b.context_ranks().size;
  spec.groups /= b.context_ranks().size;
}

void add_values(ModuleBuilder& b, Mamba& v) {
  const MambaSpec& spec = v.spec;
  const std::int64_t T = v.body_tokens(b), H = b.config().hidden, Di = v.inner();
  const std::int64_t chunks = chunks_of(T, v.length, spec.chunk);
  const DType compute = b.compute(), acc = b.accumulate();
  v.add_norm_values(b);
  v.in = b.activation("in", compute, {T, v.in_width()});
  v.conv = b.activation("conv", compute, {T, spec.channels()});
  v.states = b.activation("states", acc, {chunks, Di * spec.state});
  v.scanned = b.activation("scanned", compute, {T, Di});
  v.gate_inverse = b.activation("gate_inverse", acc, {T * v.norm_parts()});
  v.mixed = b.activation("gated", compute, {T, Di});
  v.y = b.activation("y", compute, {b.stream_tokens(), H});
  v.din = b.activation("d(in)", compute, {T, v.in_width()});
  v.dmixed = v.divides_norm ? b.activation("d(gated)", compute, {T, Di}) : b.scratch("d(gated)", compute, {T, Di});
  v.dscanned = b.scratch("d(scanned)", compute, {T, Di});
  v.dconv = b.scratch("d(conv)", compute, {T, spec.channels()});
  v.dstates = b.scratch("d(states)", acc, {chunks, Di * spec.state});
  v.sums = b.scratch("sums", acc, {chunks, 3 * spec.heads});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
}

// The norm's sums over the columns of this rank, and over those of all.
void add_sums(ModuleBuilder& b, const MambaSpec& all, Mamba& v) {
  const TensorRanks& ranks = b.tensor_ranks();
  const std::int64_t parts = all.norm_by_group ? all.groups : 1;
  v.sums_here = {all.norm_by_group ? ranks.rank * all.groups / ranks.size : 0, 1};
  const auto sums = [&](const char* name) { return b.activation(name, b.accumulate(), {b.tokens(), parts}); };
  v.squares = sums("squares");
  v.all_squares = sums("all_squares");
  v.products = sums("d(inverse)");
  v.all_products = sums("d(inverse)_of_all");
}

StateScan scan_of(const Run& r, const Mamba& v) {
  const Tensor conv = r[v.conv];
  StateScan op;
  op.x = v.x_of(conv);
  op.B = v.B(conv);
  op.C = v.C(conv);
  op.dt = v.dt(r[v.in]);
  op.A_log = r[v.A_log.value];
  op.dt_bias = r[v.dt_bias.value];
  op.D = r[v.D.value];
  op.states = r[v.states];
  op.boundaries = given(r, v.w_conv.boundaries);
  op.length = v.length;
  op.chunk = v.spec.chunk;
  op.heads = v.spec.heads;
  op.groups = v.spec.groups;
  op.dim = v.spec.head_dim;
  op.state = v.spec.state;
  op.dt_least = v.spec.step_least;
  op.dt_most = v.spec.step_most;
  return op;
}

GatedNorm gate_of(const Run& r, const Mamba& v) {
  GatedNorm gate{r[v.scanned], v.z(r[v.in]), r[v.gate_norm.value], {}, {}, v.norm_parts(), v.norm.epsilon, true};
  if (v.divides_norm) gate.whole = v.normed;
  return gate;
}

// What this rank adds to the norm's sums; nothing to those of parts that it has nothing of.
void add_up(const Run& r, const Mamba& v, const Tensor& dy, const Tensor& sums) {
  if (v.sums_here.count < sums.columns()) r.ops().fill(r.stream(), {sums, 0});
  r.ops().gated_norm_sums(r.stream(), {gate_of(r, v), dy, sums.slice_columns(v.sums_here.first, v.sums_here.count)});
}

void run_gate(const Run& r, const Mamba& v) {
  GatedNorm gate = gate_of(r, v);
  gate.y = r[v.mixed];
  gate.inverse = r[v.gate_inverse];
  if (v.divides_norm) gate.squares = r[v.all_squares].slice_columns(v.sums_here.first, v.sums_here.count);
  r.ops().gated_norm(r.stream(), gate);
}

void run_forward(const Run& r, const Mamba& v) {
  v.w_conv.forward(r, v.xbc(r[v.in]), r[v.conv]);
  StateScan scan = scan_of(r, v);
  scan.y = r[v.scanned];
  r.ops().state_scan(r.stream(), scan);
  if (v.divides_norm)
    add_up(r, v, {}, r[v.squares]);
  else
    run_gate(r, v);
}

void run_backward(const Run& r, const Mamba& v) {
  const Tensor din = r[v.din], dconv = r[v.dconv];
  GatedNormBackward gate{
      gate_of(r, v), r[v.dmixed], r[v.dscanned], v.z(din), r[v.gate_norm.gradient], r.store(v.gate_norm.gradient)};
  gate.forward.inverse = r[v.gate_inverse];
  if (v.divides_norm) gate.products = r[v.all_products].slice_columns(v.sums_here.first, v.sums_here.count);
  r.ops().gated_norm_backward(r.stream(), gate);
  StateScanBackward scan{scan_of(r, v), r[v.dscanned], v.x_of(dconv), v.B(dconv), v.C(dconv), v.dt(din)};
  scan.dA_log = r[v.A_log.gradient];
  scan.ddt_bias = r[v.dt_bias.gradient];
  scan.dD = r[v.D.gradient];
  scan.dstates = r[v.dstates];
  scan.sums = r[v.sums];
  scan.store = r.store(v.A_log.gradient);
  r.ops().state_scan_backward(r.stream(), scan);
  v.w_conv.backward(r, v.xbc(r[v.in]), dconv, v.xbc(din));
}

PieceCode forward(const Mamba& v) {
  PieceCode f;
  reads(f, {v.x, v.norm.value, v.w_in.value, v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value,
            v.D.value, v.gate_norm.value, v.divides_norm ? ValueId{} : v.w_out.value});
  writes(f, {v.xn, v.inverse, v.in, v.conv, v.states, v.scanned});
  if (v.divides_norm)
    writes(f, {v.squares});
  else
    writes(f, {v.gate_inverse, v.mixed, v.y});
  reads(f, {v.w_conv.bias.value, v.w_conv.shared_weight.value, v.w_conv.shared_bias.value});
  f.run = [v](const Run& r) { run_forward(r, v); };
  return f;
}

std::vector<PiecePart> parts(const Mamba& v) {
  PiecePart scan{"scan"};
  reads(scan.code, {v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value, v.D.value, v.gate_norm.value});
  reads(scan.code, {v.w_conv.bias.value, v.w_conv.shared_weight.value, v.w_conv.shared_bias.value});
  writes(scan.code, {v.in, v.conv, v.states, v.scanned});
  if (v.divides_norm)
    writes(scan.code, {v.squares});
  else
    writes(scan.code, {v.gate_inverse, v.mixed});
  scan.code.run = forward(v).run;
  return {std::move(scan)};
}

PieceCode backward(const Mamba& v) {
  PieceCode g;
  const bool whole = !v.divides_norm;
  reads(g, {whole ? v.dy : v.dmixed, v.x, v.inverse, v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.norm.value,
            v.w_in.value, v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value, v.D.value,
            v.gate_norm.value, whole ? v.w_out.value : v.all_products});
  writes(g, {v.din});
  if (whole) writes(g, {v.dmixed});
  writes(g, {v.dscanned, v.dconv, v.dstates, v.sums, v.dxn, v.dx});
  adds_to(g, {v.norm.gradient, v.w_conv.gradient, v.A_log.gradient, v.dt_bias.gradient, v.D.gradient,
              v.gate_norm.gradient});
  for (const ParameterValues& more : {v.w_conv.bias, v.w_conv.shared_weight, v.w_conv.shared_bias})
    if (more.value.valid()) {
      reads(g, {more.value});
      adds_to(g, {more.gradient});
    }
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

// From the norm's sums over ranks on.
SecondHalf second_half(const Mamba& v) {
  SecondHalf half;
  reads(half.forward, {v.in, v.scanned, v.gate_norm.value, v.all_squares});
  writes(half.forward, {v.gate_inverse, v.mixed});
  half.forward.run = [v](const Run& r) { run_gate(r, v); };
  reads(half.backward, {v.in, v.scanned, v.gate_norm.value});
  writes(half.backward, {v.products});
  half.backward.run = [v](const Run& r) { add_up(r, v, r[v.dmixed], r[v.products]); };
  half.part = v.squares;
  half.sum = v.all_squares;
  half.dpart = v.products;
  half.dsum = v.all_products;
  return half;
}

}  // namespace

ValueId add_mamba(ModuleBuilder& b, const MambaSpec& spec, ValueId x) {
  const TensorRanks& ranks = b.tensor_ranks();
  Mamba v;
  v.spec = spec;
  v.spec.heads = ranks.share(spec.heads);
  v.spec.groups = ranks.share(spec.groups);
  v.shares_groups = spec.groups % ranks.size != 0;
  v.divides_norm = ranks.divide() && (v.shares_groups || !spec.norm_by_group);
  v.normed = spec.norm_by_group ? spec.width() / spec.groups : spec.width();
  v.length = b.options().length;
  v.add_norm_weight(b, x);
  add_parameters(b, spec, v);
  if (b.context_ranks().divide()) divide_heads(b, v);
  add_values(b, v);
  if (v.divides_norm) add_sums(b, spec, v);
  std::optional<SecondHalf> second;
  if (v.divides_norm) second = second_half(v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v), std::move(second));
}

}  // namespace weft
