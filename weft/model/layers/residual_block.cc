#include "weft/model/layers/residual_block.h"

#include <iterator>

#include "weft/model/layers/uses.h"

namespace weft {

void ResidualBlock::add_norm_weight(ModuleBuilder& b, ValueId from) {
  x = from;
  norm = add_norm(b, "norm_weight", Role::norm, b.config().hidden);
}

void ResidualBlock::add_norm_values(ModuleBuilder& b) {
  xn = b.activation("xn", b.compute(), {b.tokens(), b.config().hidden});
  inverse = b.activation("inverse", b.accumulate(), {b.tokens()});
}

void ResidualBlock::add_gradients(ModuleBuilder& b) {
  dx = b.gradient_of(x);
  dy = b.gradient_of(y);
}

std::vector<PiecePart> ResidualBlock::parts(std::vector<PiecePart> body) const {
  PiecePart first{"norm", set_of({RecomputeModule::layernorm})}, last{"out"};
  reads(first.code, {x, norm.value});
  writes(first.code, {xn, inverse});
  first.code.run = [block = *this](const Run& r) { block.normalise(r); };
  PieceCode& in_code = body.front().code;
  reads(in_code, {xn, w_in.value});
  if (w_in.has_bias()) reads(in_code, {w_in.bias.value});
  in_code.run = [block = *this, run = std::move(in_code.run)](const Run& r) {
    block.project_in(r);
    if (run) run(r);
  };
  reads(last.code, {x, mixed, w_out.value});
  if (w_out.has_bias()) reads(last.code, {w_out.bias.value});
  writes(last.code, {y});
  last.code.run = [block = *this](const Run& r) { block.project_out(r); };
  std::vector<PiecePart> all{std::move(first)};
  std::move(body.begin(), body.end(), std::back_inserter(all));
  all.push_back(std::move(last));
  return all;
}

ValueId ResidualBlock::add_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                                 std::vector<PiecePart> body) const {
  Piece& p = b.piece("mix");
  p.forward = {std::move(forward.uses), [block = *this, body = std::move(forward.run)](const Run& r) {
                 block.normalise(r);
                 block.project_in(r);
                 body(r);
                 block.project_out(r);
               }};
  p.backward = {std::move(backward.uses), [block = *this, body = std::move(backward.run)](const Run& r) {
                  block.project_out_backward(r);
                  body(r);
                  block.project_in_backward(r);
                  block.normalise_backward(r);
                }};
  p.weight_gradient = std::move(weight_gradient);
  p.parts = parts(std::move(body));
  return y;
}

PieceCode ResidualBlock::weight_gradient() const {
  PieceCode code;
  reads(code, {dy, mixed, din, xn});
  adds_to(code, {w_out.gradient, w_in.gradient});
  code.run = [block = *this](const Run& r) {
    block.w_out.weight_gradient(r, block.dy, block.mixed);
    block.w_in.weight_gradient(r, block.din, block.xn);
  };
  return code;
}

void ResidualBlock::normalise(const Run& r) const { norm.forward(r, r[x], r[xn], inverse); }

void ResidualBlock::project_in(const Run& r) const { w_in.forward(r, r[xn], r[in]); }

void ResidualBlock::project_out(const Run& r) const { w_out.forward(r, r[mixed], r[y], r[x]); }

void ResidualBlock::project_out_backward(const Run& r) const { w_out.backward(r, r[dy], r[dmixed]); }

void ResidualBlock::project_in_backward(const Run& r) const { w_in.backward(r, r[din], r[dxn]); }

void ResidualBlock::normalise_backward(const Run& r) const { norm.backward(r, r[x], inverse, r[dxn], r[dx], r[dy]); }

}  // namespace weft
