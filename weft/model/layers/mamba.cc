// `M`: Mamba-2. [z | x | B | C | dt] = W_in norm(x); [x | B | C] go through the convolution, then the scan; the gated
// norm of the scan's output and z goes through W_out and is added to the residual stream.
//
// T tokens, H hidden, Di = heads * head_dim, N = groups * state. One state per chunk and head is kept for backward;
// states within a chunk are recomputed. Tensor ranks divide heads and groups: those of this rank.
#include "weft/device/operations.h"
#include "weft/model/layers/convolution.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct Mamba : ResidualBlock {
  MambaSpec spec;  // of this rank's heads and groups
  std::int64_t length = 0;
  ValueId conv, states, scanned, gate_inverse;
  ValueId dconv, dscanned, dstates, sums;
  Convolution w_conv;
  ParameterValues A_log, dt_bias, D, gate_norm;

  std::int64_t inner() const { return spec.width(); }
  std::int64_t state_width() const { return spec.groups * spec.state; }
  std::int64_t in_width() const { return inner() + spec.channels() + spec.heads; }
  std::int64_t norm_parts() const { return spec.norm_by_group ? spec.groups : 1; }
  // Parts of [z | x | B | C | dt] and of [x | B | C].
  Tensor z(const Tensor& all) const { return all.slice_columns(0, inner()); }
  Tensor xbc(const Tensor& all) const { return all.slice_columns(inner(), inner() + 2 * state_width()); }
  Tensor dt(const Tensor& all) const { return all.slice_columns(2 * (inner() + state_width()), spec.heads); }
  Tensor x_of(const Tensor& xbc) const { return xbc.slice_columns(0, inner()); }
  Tensor B(const Tensor& xbc) const { return xbc.slice_columns(inner(), state_width()); }
  Tensor C(const Tensor& xbc) const { return xbc.slice_columns(inner() + state_width(), state_width()); }
};

void add_parameters(ModuleBuilder& b, const MambaSpec& all, Mamba& v) {
  const MambaSpec& spec = v.spec;
  const std::int64_t H = b.config().hidden, Di = all.width(), N = all.groups * all.state;
  const Init taps = convolution_init(spec.taps);
  const auto part = [&](Role role, const Shape& shape, Init init) { return b.tensor_part(role, shape, 0, init); };
  const auto rows = [&](Role role, std::int64_t count) { return part(role, {count, H}, b.matrix_init()); };
  v.w_in = {b.parameter(
      "input_weight", {v.in_width(), H},
      {rows(Role::z, Di), rows(Role::x, Di), rows(Role::B, N), rows(Role::C, N), rows(Role::dt, all.heads)})};
  v.w_conv = {b.parameter("conv_weight", {spec.channels(), spec.taps},
                          {part(Role::conv_x, {Di, spec.taps}, taps), part(Role::conv_B, {N, spec.taps}, taps),
                           part(Role::conv_C, {N, spec.taps}, taps)})};
  v.w_conv.length = v.length;
  v.w_conv.boundaries = b.module().boundaries;
  b.keep_gradient_precise(v.w_conv);
  if (spec.conv_bias)
    v.w_conv.bias = b.parameter(
        "conv_bias", {spec.channels()},
        {part(Role::conv_x_bias, {Di}, taps), part(Role::conv_B_bias, {N}, taps), part(Role::conv_C_bias, {N}, taps)});
  const Shape heads{all.heads}, here{spec.heads};
  v.A_log = b.precise_parameter("A_log", here, {part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", here, {part(Role::dt_bias, heads, {Init::Kind::step_bias, 1e-3, 0.1})});
  v.D = b.precise_parameter("D", here, {part(Role::D, heads, {Init::Kind::constant, 1})});
  // Never zero-centred: no published model does that.
  v.gate_norm = b.parameter("gate_norm_weight", {v.inner()}, {part(Role::mixer_norm, {Di}, {Init::Kind::constant, 1})});
  v.w_out = {
      b.parameter("output_weight", {H, v.inner()}, {b.tensor_part(Role::output, {H, Di}, 1, b.residual_init())})};
}

void add_values(ModuleBuilder& b, Mamba& v) {
  const MambaSpec& spec = v.spec;
  const std::int64_t T = b.tokens(), H = b.config().hidden, Di = v.inner();
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
  v.dmixed = b.scratch("d(gated)", compute, {T, Di});
  v.dscanned = b.scratch("d(scanned)", compute, {T, Di});
  v.dconv = b.scratch("d(conv)", compute, {T, spec.channels()});
  v.dstates = b.scratch("d(states)", acc, {chunks, Di * spec.state});
  v.sums = b.scratch("sums", acc, {chunks, 3 * spec.heads});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
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
  return {r[v.scanned],      v.z(r[v.in]),   r[v.gate_norm.value], {},
          r[v.gate_inverse], v.norm_parts(), v.norm.epsilon,       true};
}

void run_forward(const Run& r, const Mamba& v) {
  v.w_conv.forward(r, v.xbc(r[v.in]), r[v.conv]);
  StateScan scan = scan_of(r, v);
  scan.y = r[v.scanned];
  r.ops().state_scan(r.stream(), scan);
  GatedNorm gate = gate_of(r, v);
  gate.y = r[v.mixed];
  r.ops().gated_norm(r.stream(), gate);
}

void run_backward(const Run& r, const Mamba& v) {
  const Tensor din = r[v.din], dconv = r[v.dconv];
  r.ops().gated_norm_backward(r.stream(), {gate_of(r, v), r[v.dmixed], r[v.dscanned], v.z(din), r[v.gate_norm.gradient],
                                           r.store(v.gate_norm.gradient)});
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
            v.D.value, v.gate_norm.value, v.w_out.value});
  writes(f, {v.xn, v.inverse, v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.mixed, v.y});
  if (v.w_conv.has_bias()) reads(f, {v.w_conv.bias.value});
  f.run = [v](const Run& r) { run_forward(r, v); };
  return f;
}

std::vector<PiecePart> parts(const Mamba& v) {
  PiecePart scan{"scan"};
  reads(scan.code, {v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value, v.D.value, v.gate_norm.value});
  if (v.w_conv.has_bias()) reads(scan.code, {v.w_conv.bias.value});
  writes(scan.code, {v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.mixed});
  scan.code.run = forward(v).run;
  return {std::move(scan)};
}

PieceCode backward(const Mamba& v) {
  PieceCode g;
  reads(g, {v.dy, v.x, v.inverse, v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.norm.value, v.w_in.value,
            v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value, v.D.value, v.gate_norm.value,
            v.w_out.value});
  writes(g, {v.din, v.dmixed, v.dscanned, v.dconv, v.dstates, v.sums, v.dxn, v.dx});
  adds_to(g, {v.norm.gradient, v.w_conv.gradient, v.A_log.gradient, v.dt_bias.gradient, v.D.gradient,
              v.gate_norm.gradient});
  if (v.w_conv.has_bias()) {
    reads(g, {v.w_conv.bias.value});
    adds_to(g, {v.w_conv.bias.gradient});
  }
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

}  // namespace

ValueId add_mamba(ModuleBuilder& b, const MambaSpec& spec, ValueId x) {
  Mamba v;
  v.spec = spec;
  v.spec.heads = b.tensor_ranks().share(spec.heads);
  v.spec.groups = b.tensor_ranks().share(spec.groups);
  v.length = b.options().length;
  v.add_norm_weight(b, x);
  add_parameters(b, spec, v);
  add_values(b, v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v));
}

}  // namespace weft
