#include "weft/model/layers/residual_block.h"

#include <iterator>

#include "weft/device/operations.h"
#include "weft/model/layers/uses.h"

namespace weft {

void SharedInput::forward(const Run& r, const Tensor& xn, const Tensor& in) const {
  for (const Used& u : used) {
    Matmul product{xn, r[w.value].slice_rows(u.first, u.count), in.slice_columns(u.column, u.count), Transposed::no,
                   Transposed::yes};
    if (w.has_bias()) product.bias = r[w.bias.value].slice_rows(u.first, u.count);
    r.ops().matmul(r.stream(), product);
  }
}

void SharedInput::backward(const Run& r, const Tensor& din, const Tensor& dxn) const {
  for (const Used& u : used)
    r.ops().matmul(r.stream(), {din.slice_columns(u.column, u.count), r[w.value].slice_rows(u.first, u.count), dxn,
                                Transposed::no, Transposed::no, Store::add});
}

void SharedInput::weight_gradient(const Run& r, const Tensor& din, const Tensor& xn) const {
  if (r.store(w.gradient) == Store::write) r.ops().fill(r.stream(), {r[w.gradient], 0});
  if (w.has_bias() && r.store(w.bias.gradient) == Store::write) r.ops().fill(r.stream(), {r[w.bias.gradient], 0});
  for (const Used& u : used) {
    const Tensor d = din.slice_columns(u.column, u.count);
    r.ops().matmul(r.stream(),
                   {d, xn, r[w.gradient].slice_rows(u.first, u.count), Transposed::yes, Transposed::no, Store::add});
    if (w.has_bias()) r.ops().column_sum(r.stream(), {d, r[w.bias.gradient].slice_rows(u.first, u.count), Store::add});
  }
}

std::vector<HeadSection> sections_of(std::initializer_list<std::pair<std::int64_t, std::int64_t>> widths_and_heads) {
  std::vector<HeadSection> sections;
  std::int64_t first = 0;
  for (const auto& [width, heads] : widths_and_heads) {
    sections.push_back({first, width, heads});
    first += width;
  }
  return sections;
}

std::int64_t width_of(const std::vector<HeadSection>& sections) {
  std::int64_t width = 0;
  for (const HeadSection& s : sections) width += s.count;
  return width;
}

std::int64_t share_of(const std::vector<HeadSection>& sections, std::int64_t ranks) {
  std::int64_t width = 0;
  for (const HeadSection& s : sections) width += s.share(ranks);
  return width;
}

void ResidualBlock::add_norm_weight(ModuleBuilder& b, ValueId from) {
  x = from;
  norm = add_norm(b, "norm_weight", Role::norm, b.config().hidden);
  cut_.ranks = b.tensor_ranks();
  cut_.counted = b.counted_tokens();
}

void ResidualBlock::add_norm_values(ModuleBuilder& b) {
  xn = b.activation("xn", b.compute(), {b.stream_tokens(), b.config().hidden});
  inverse = b.activation("inverse", b.accumulate(), {b.stream_tokens()});
}

ValueId ResidualBlock::input_gradient(ModuleBuilder& b) const {
  const Shape shape{b.tokens(), b.config().hidden};
  return cut_.ranks.divide() ? b.activation("d(xn)", b.compute(), shape) : b.scratch("d(xn)", b.compute(), shape);
}

std::vector<PiecePart> ResidualBlock::body_parts(std::vector<PiecePart> body) const {
  PieceCode& in_code = body.front().code;
  const ValueId from = xn_of_body();
  reads(in_code, {from, w_in.value});
  if (w_in.has_bias()) reads(in_code, {w_in.bias.value});
  for (const SharedInput& s : shared_inputs) {
    reads(in_code, {s.w.value});
    if (s.w.has_bias()) reads(in_code, {s.w.bias.value});
  }
  in_code.run = [block = *this, from, run = std::move(in_code.run)](const Run& r) {
    block.project_in(r, from);
    if (run) run(r);
  };
  return body;
}

std::vector<PiecePart> ResidualBlock::parts(std::vector<PiecePart> body) const {
  PiecePart first{"norm", set_of({RecomputeModule::layernorm})}, last{"out"};
  reads(first.code, {x, norm.value});
  writes(first.code, {xn, inverse});
  first.code.run = [block = *this](const Run& r) { block.normalise(r); };
  reads(last.code, {x, mixed, w_out.value});
  if (w_out.has_bias()) reads(last.code, {w_out.bias.value});
  writes(last.code, {y});
  last.code.run = [block = *this](const Run& r) { block.project_out(r); };
  std::vector<PiecePart> all{std::move(first)};
  body = body_parts(std::move(body));
  std::move(body.begin(), body.end(), std::back_inserter(all));
  all.push_back(std::move(last));
  return all;
}

ValueId ResidualBlock::add_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                                 std::vector<PiecePart> body, std::optional<SecondHalf> second,
                                 const std::function<void()>& add_more) const {
  if (exchanges_heads() && !cut_.ranks.divide()) {
    add_head_pieces(b, std::move(forward), std::move(backward), std::move(weight_gradient), std::move(body));
    return y;
  }
  if (cut_.ranks.divide()) {
    add_cut_pieces(b, std::move(forward), std::move(backward), std::move(weight_gradient), std::move(body),
                   std::move(second), add_more);
    return y;
  }
  Piece& p = b.piece("mix");
  p.forward = {std::move(forward.uses), [block = *this, body = std::move(forward.run)](const Run& r) {
                 block.normalise(r);
                 block.project_in(r, block.xn);
                 body(r);
                 block.project_out(r);
               }};
  p.backward = {std::move(backward.uses), [block = *this, body = std::move(backward.run)](const Run& r) {
                  block.project_out_backward(r, block.dy);
                  body(r);
                  block.project_in_backward(r);
                  block.normalise_backward(r);
                }};
  p.weight_gradient = std::move(weight_gradient);
  p.parts = parts(std::move(body));
  return y;
}

PieceCode ResidualBlock::weight_gradient() const {
  if (exchanges_heads()) return {};  // W_in and W_out belong to other pieces
  const ValueId dout = cut_.all_dy, from = cut_.xn_again;
  // Of a divided layer, W_out and its bias belong to other pieces.
  const bool out = !cut_.ranks.divide(), out_bias = w_out.has_bias() && out;
  PieceCode code;
  if (out) reads(code, {dout, mixed});
  reads(code, {din, from});
  if (out) adds_to(code, {w_out.gradient});
  adds_to(code, {w_in.gradient});
  if (w_in.has_bias()) adds_to(code, {w_in.bias.gradient});
  if (out_bias) adds_to(code, {w_out.bias.gradient});
  for (const SharedInput& s : shared_inputs) {
    adds_to(code, {s.w.gradient});
    if (s.w.has_bias()) adds_to(code, {s.w.bias.gradient});
  }
  code.run = [block = *this, dout, from, out, out_bias](const Run& r) {
    const Tensor all = r[block.din], own = block.own_columns > 0 ? all.slice_columns(0, block.own_columns) : all;
    const ParameterValues w = block.w_in;
    if (out) block.w_out.weight_gradient(r, dout, block.mixed);
    r.ops().matmul(r.stream(), {own, r[from], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
    if (out_bias) block.w_out.bias_gradient(r, dout);
    if (block.w_in.has_bias())
      r.ops().column_sum(r.stream(), {own, r[block.w_in.bias.gradient], r.store(block.w_in.bias.gradient)});
    for (const SharedInput& s : block.shared_inputs) s.weight_gradient(r, all, r[from]);
  };
  return code;
}

void ResidualBlock::normalise(const Run& r) const { norm.forward(r, r[x], r[xn], inverse); }

void ResidualBlock::project_in(const Run& r, ValueId from) const {
  const Tensor all = r[seams_.in];
  w_in.forward(r, r[from], own_columns > 0 ? all.slice_columns(0, own_columns) : all);
  if (aside.weight.valid())
    r.ops().matmul(r.stream(), {r[from], r[aside.weight], all.slice_columns(aside.column, aside.count), Transposed::no,
                                Transposed::yes});
  for (const SharedInput& s : shared_inputs) s.forward(r, r[from], all);
}

void ResidualBlock::project_out(const Run& r) const { w_out.forward(r, r[seams_.mixed], r[y], r[x]); }

// One rank adds the bias.
void ResidualBlock::project_out_partly(const Run& r) const {
  Linear w = w_out;
  if (cut_.ranks.rank != 0) w.bias = {};
  w.forward(r, r[seams_.mixed], r[cut_.partial]);
}

void ResidualBlock::project_out_backward(const Run& r, ValueId dout) const {
  w_out.backward(r, r[dout], r[seams_.dmixed]);
}

void ResidualBlock::project_in_backward(const Run& r) const {
  const Tensor all = r[seams_.din];
  w_in.backward(r, own_columns > 0 ? all.slice_columns(0, own_columns) : all, r[dxn]);
  for (const SharedInput& s : shared_inputs) s.backward(r, all, r[dxn]);
}

void ResidualBlock::normalise_backward(const Run& r) const {
  norm.backward(r, r[x], inverse, r[cut_.dxn_sum], r[dx], r[dy], cut_.counted, cut_.unused);
}

}  // namespace weft
