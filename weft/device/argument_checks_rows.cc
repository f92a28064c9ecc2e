#include "weft/device/argument_checks.h"
#include "weft/device/argument_fits.h"

namespace weft {

namespace {

constexpr const char* x_y = "x and y differ in shape or dtype";
constexpr const char* x_dy = "x and dy differ in shape or dtype";
constexpr const char* x_dy_dx = "x, dy and dx differ in shape or dtype";

void check_parts(const Fits& fits, const Tensor& x, std::int64_t groups) {
  fits(groups >= 1 && x.columns() % groups == 0, "a row does not divide into its parts");
}
void check_parts(const Fits& fits, const Tensor& x, std::int64_t groups, const Tensor& weight) {
  check_parts(fits, x, groups);
  const std::int64_t weights = weight.shape.elements();
  fits(x.rows() == 0 || weights == x.columns() / groups || weights == x.columns(),
       "the weight's length is neither a part's nor a row's");
}
void check_inverse(const Fits& fits, const Tensor& inverse, const Tensor& x, std::int64_t groups) {
  fits(inverse.dtype == accumulator_of(x) && inverse.shape.elements() == x.rows() * groups,
       "the inverse is not acc [rows * groups]");
}

void check_moments(const Fits& fits, const Tensor& mean, const Tensor& inverse, const Tensor& x) {
  for (const Tensor* tensor : {&mean, &inverse})
    fits(tensor->dtype == accumulator_of(x) && tensor->shape.elements() == x.rows(),
         "mean and inverse are not acc [rows]");
}

void check_part_sums(const Fits& fits, const Tensor& sums, const GatedNorm& x) {
  fits(sums.dtype == accumulator_of(x.x) && sums.rows() == x.x.rows() && sums.columns() == x.groups,
       "sums over parts are not acc [rows, groups]");
}

// Without y, inverse and squares.
void check_gated(const Fits& fits, const GatedNorm& x) {
  fits.alike(x.x, x.z, "x and z differ in shape or dtype");
  check_parts(fits, x.x, x.groups, x.weight);
}

// All but y.
void check_inputs(const Fits& fits, const GatedNorm& x) {
  check_gated(fits, x);
  fits(x.whole == 0 || x.whole >= x.x.columns() / x.groups, "the whole part has fewer elements than its piece");
  if (x.x.rows() > 0) check_inverse(fits, x.inverse, x.x, x.groups);
}

void check_gate(const Fits& fits, const Tensor& x, const Tensor& gate) {
  fits(x.rows() == gate.rows() && x.dtype == gate.dtype, "x and gate differ in rows or dtype");
  fits(x.rows() == 0 || (gate.columns() >= 1 && x.columns() % gate.columns() == 0),
       "a row does not divide into its parts");
}

void check_activation(const Fits& fits, const ActivationSpec& spec, const Tensor& x, const Tensor& y,
                      const Tensor& scale) {
  fits(x.rows() == y.rows() && x.shape.elements() == y.shape.elements() * (spec.gated() ? 2 : 1),
       "x does not have the columns that y and the kind ask for");
  fits(x.dtype == y.dtype, "x and y differ in dtype");
  fits(!scale.given() || (scale.shape.elements() == x.rows() && scale.dtype == accumulator_of(x)),
       "the scale is not acc [rows]");
}

// All but y.
void check_inputs(const Fits& fits, const CausalConvolution& x) {
  const std::int64_t T = x.x.rows(), channels = x.weight.rows(), taps = x.weight.columns();
  fits(taps >= 1 && taps <= most_taps, "has more than 16 taps, or none");
  fits(T == 0 || x.x.columns() == channels, "x and the weight differ in channels");
  fits(x.length <= 0 || T % x.length == 0, "T is not a multiple of length");
  fits(!x.bias.given() || (x.bias.shape.elements() == channels && x.bias.dtype == x.weight.dtype),
       "the bias is not [channels] of the weight's dtype");
  fits.boundaries(x.boundaries, T);
}

void check_positions(const Fits& fits, const Tensor& positions, std::int64_t length, std::int64_t tokens) {
  fits(positions.given() ? positions.dtype == DType::i32 && positions.shape.elements() == tokens : length > 0,
       "needs i32 positions [T], or a length");
}

template <class Op>
void check_latent(const Fits& fits, const Op& x, const Tensor& q, const Tensor& k, const Tensor& own,
                  const Tensor& shared) {
  const std::int64_t T = q.rows(), width = x.still + x.turning;
  fits(x.heads >= 1 && x.still >= 0 && x.turning >= 2 && x.turning % 2 == 0,
       "heads do not have an even number of turning elements");
  fits(q.columns() == x.heads * width && same_size(q, k), "q or k is not [T, heads * (still + turning)]");
  fits(x.still == 0 || is_matrix(own, T, x.heads * x.still), "the heads' own parts are not [T, heads * still]");
  fits(is_matrix(shared, T, x.turning), "the shared part is not [T, turning]");
  fits(q.dtype == k.dtype && q.dtype == shared.dtype && (x.still == 0 || q.dtype == own.dtype),
       "its tensors differ in dtype");
  fits(x.cosine.columns() == x.turning / 2 && same_size(x.cosine, x.sine) && x.cosine.dtype == accumulator_of(q) &&
           x.sine.dtype == x.cosine.dtype,
       "cosine and sine are not acc [positions, turning / 2]");
  check_positions(fits, x.positions, x.length, T);
}

void check_choice(const Fits& fits, const RouterSpec& spec, std::int64_t experts) {
  fits(spec.k >= 1 && spec.k <= experts && spec.k <= most_choices, "k is not between 1 and the experts (or 256)");
  if (spec.groups <= 1) return;
  const std::int64_t group = experts / spec.groups;
  fits(experts % spec.groups == 0, "the experts do not divide into the groups");
  fits(spec.keep_groups >= 1 && spec.keep_groups <= spec.groups && spec.k <= spec.keep_groups * group,
       "the kept groups hold fewer than k experts");
  fits(spec.group_best >= 1 && spec.group_best <= group, "group_best is not between 1 and a group's experts");
}

}  // namespace

void check_arguments(const char* operation, const RmsNorm& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  check_parts(fits, op.x, op.groups, op.weight);
  if (op.inverse.given()) check_inverse(fits, op.inverse, op.x, op.groups);
}

void check_arguments(const char* operation, const RmsNormBackward& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.dy, x_dy_dx);
  fits.alike(op.x, op.dx, x_dy_dx);
  if (op.residual.given()) fits.alike(op.x, op.residual, "x and the residual differ in shape or dtype");
  fits(op.weight.shape.elements() == op.dweight.shape.elements(), "weight and dweight differ in length");
  check_parts(fits, op.x, op.groups, op.weight);
  check_inverse(fits, op.inverse, op.x, op.groups);
}

void check_arguments(const char* operation, const LayerNorm& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  fits(op.x.rows() == 0 || op.weight.shape.elements() == op.x.columns(), "the weight is not [columns]");
  fits(op.weight.shape.elements() == op.bias.shape.elements() && op.weight.dtype == op.bias.dtype,
       "weight and bias differ in shape or dtype");
  fits(op.mean.given() == op.inverse.given(), "mean and inverse go together");
  if (op.mean.given()) check_moments(fits, op.mean, op.inverse, op.x);
}

void check_arguments(const char* operation, const LayerNormBackward& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.dy, x_dy_dx);
  fits.alike(op.x, op.dx, x_dy_dx);
  fits(op.x.rows() == 0 || op.weight.shape.elements() == op.x.columns(), "the weight is not [columns]");
  check_moments(fits, op.mean, op.inverse, op.x);
}

void check_arguments(const char* operation, const LayerNormWeightGradient& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.dy, x_dy);
  fits(op.x.rows() == 0 || op.dweight.shape.elements() == op.x.columns(), "dweight is not [columns]");
  fits(op.dweight.shape.elements() == op.dbias.shape.elements() && op.dweight.dtype == op.dbias.dtype,
       "dweight and dbias differ in shape or dtype");
  check_moments(fits, op.mean, op.inverse, op.x);
}

void check_arguments(const char* operation, const GatedNorm& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  check_inputs(fits, op);
  fits(op.squares.given() == (op.whole > 0), "squares go with divided parts");
  if (op.squares.given()) check_part_sums(fits, op.squares, op);
}

void check_arguments(const char* operation, const GatedNormBackward& op) {
  const Fits fits(operation);
  for (const Tensor* tensor : {&op.dy, &op.dx, &op.dz})
    fits.alike(op.forward.x, *tensor, "x, dy, dx and dz differ in shape or dtype");
  fits(op.forward.weight.shape.elements() == op.dweight.shape.elements(), "weight and dweight differ in length");
  check_inputs(fits, op.forward);
  fits(op.products.given() == (op.forward.whole > 0), "products go with divided parts");
  if (op.products.given()) check_part_sums(fits, op.products, op.forward);
}

void check_arguments(const char* operation, const GatedNormSums& op) {
  const Fits fits(operation);
  check_gated(fits, op.forward);
  if (op.dy.given()) fits.alike(op.forward.x, op.dy, x_dy);
  check_part_sums(fits, op.sums, op.forward);
}

void check_arguments(const char* operation, const L2Norm& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  check_parts(fits, op.x, op.groups);
}

void check_arguments(const char* operation, const L2NormBackward& op) {
  const Fits fits(operation);
  fits.alike(op.forward.x, op.dy, x_dy_dx);
  fits.alike(op.forward.x, op.dx, x_dy_dx);
  check_parts(fits, op.forward.x, op.forward.groups);
}

std::int64_t gated_width(const Tensor& x, const Tensor& gate) {
  return x.rows() > 0 ? x.columns() / gate.columns() : 1;
}

void check_arguments(const char* operation, const SigmoidGate& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  check_gate(fits, op.x, op.gate);
}

void check_arguments(const char* operation, const SigmoidGateBackward& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.dy, x_dy_dx);
  fits.alike(op.x, op.dx, x_dy_dx);
  fits.alike(op.gate, op.dgate, "gate and dgate differ in shape or dtype");
  check_gate(fits, op.x, op.gate);
}

void check_arguments(const char* operation, const Activation& op) {
  check_activation(Fits(operation), op.spec, op.x, op.y, op.scale);
}

void check_arguments(const char* operation, const ActivationBackward& op) {
  const Fits fits(operation);
  check_activation(fits, op.spec, op.x, op.dy, op.scale);
  fits.alike(op.x, op.dx, "x and dx differ in shape or dtype");
  fits(!op.dscale.given() || (op.dscale.dtype == accumulator_of(op.x) && op.dscale.shape.elements() == op.x.rows()),
       "dscale is not acc [rows]");
}

void check_arguments(const char* operation, const CausalConvolution& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  check_inputs(fits, op);
}

void check_arguments(const char* operation, const CausalConvolutionBackward& op) {
  const Fits fits(operation);
  fits.alike(op.forward.x, op.dy, x_dy_dx);
  fits.alike(op.forward.x, op.dx, x_dy_dx);
  check_inputs(fits, op.forward);
}

void check_arguments(const char* operation, const CausalConvolutionWeightGradient& op) {
  const Fits fits(operation);
  const CausalConvolution& x = op.forward;
  fits.alike(x.x, op.dy, x_dy);
  fits(same_size(x.weight, op.dweight), "the weight and its gradient differ in shape");
  fits(op.dbias.given() == x.bias.given(), "dbias goes with the bias");
  fits(!op.dbias.given() || (op.dbias.dtype == op.dweight.dtype && same_size(op.dbias, x.bias)),
       "dbias is not [channels] of dweight's dtype");
  check_inputs(fits, x);
}

void check_arguments(const char* operation, const Rotary& op) {
  const Fits fits(operation);
  fits.alike(op.x, op.y, x_y);
  if (op.x.rows() == 0) return;
  fits(op.x.columns() == op.heads * op.head_dim, "x does not have heads * head_dim columns");
  fits(op.width >= 0 && op.width % 2 == 0 && op.width <= op.head_dim, "the width is odd or exceeds head_dim");
  fits(op.cosine.columns() == op.width / 2 && same_size(op.cosine, op.sine),
       "the tables of angles do not have width / 2 columns");
  fits(op.cosine.dtype == accumulator_of(op.x) && op.sine.dtype == op.cosine.dtype, "the tables of angles are not acc");
  check_positions(fits, op.positions, op.length, op.x.rows());
}

void check_arguments(const char* operation, const LatentHeads& op) {
  check_latent(Fits(operation), op, op.q, op.k, op.own, op.shared);
}

void check_arguments(const char* operation, const LatentHeadsBackward& op) {
  check_latent(Fits(operation), op, op.dq, op.dk, op.down, op.dshared);
}

void check_arguments(const char* operation, const Router& op) {
  const Fits fits(operation);
  const std::int64_t T = op.logits.rows(), experts = op.logits.columns();
  check_choice(fits, op.spec, experts);
  fits.alike(op.logits, op.scores, "logits and scores differ in shape or dtype");
  fits(is_matrix(op.weights, T, op.spec.k) && op.weights.dtype == op.logits.dtype,
       "the weights are not [T, k] of the logits' dtype");
  fits(same_size(op.weights, op.indices) && op.indices.dtype == DType::i32, "the indices are not i32 [T, k]");
  fits(!op.bias.given() || (op.spec.score == RouterSpec::Score::sigmoid && op.bias.dtype == op.logits.dtype &&
                            op.bias.shape.elements() == experts),
       "the bias is not acc [E], or the scores are not sigmoids");
}

void check_arguments(const char* operation, const RouterBackward& op) {
  const Fits fits(operation);
  check_choice(fits, op.spec, op.scores.columns());
  fits.alike(op.scores, op.dlogits, "scores and dlogits differ in shape or dtype");
  fits(is_matrix(op.weights, op.scores.rows(), op.spec.k) && same_size(op.weights, op.dweights) &&
           same_size(op.weights, op.indices),
       "weights, dweights and indices are not [T, k]");
  fits(op.weights.dtype == op.scores.dtype && op.dweights.dtype == op.scores.dtype && op.indices.dtype == DType::i32,
       "its tensors' dtypes do not go together");
}

void check_arguments(const char* operation, const GroupedMatmul& op) {
  const Fits fits(operation);
  fits(op.x.shape.dims() == 2 && op.y.shape.dims() == 2 && op.w.shape.dims() == 3,
       "x and y are not matrices, or w is not [groups, n, k]");
  fits(op.x.shape[0] == op.y.shape[0], "x and y differ in rows");
  fits(op.w.shape[1] == op.y.shape[1] && op.w.shape[2] == op.x.shape[1], "w does not fit x and y");
  fits(op.groups.counts.dtype == DType::i32 && op.groups.offsets.dtype == DType::i32, "counts are not i32");
  fits(op.groups.counts.shape.elements() == op.w.shape[0], "w and counts differ in groups");
  fits(op.groups.offsets.shape.elements() == op.w.shape[0] + 1, "offsets are not one more than groups");
  if (op.bias.given())
    fits(op.mode == GroupedMatmul::Mode::forward && op.bias.shape.elements() == op.w.shape[0] * op.w.shape[1],
         "bias goes only with forward, [groups, n]");
}

void check_arguments(const char* operation, const SumRows& op) {
  const Fits fits(operation);
  fits(op.index.dtype == DType::i32 && op.index.rows() == op.y.rows(), "the index is not i32 [T, k]");
  fits(op.x.rows() == 0 || op.x.columns() == op.y.columns(), "x and y differ in columns");
  if (op.residual.given()) fits.alike(op.residual, op.y, "the residual and y differ in shape or dtype");
  fits(!op.extra.given() || (same_size(op.extra, op.y) && op.extra.dtype == op.x.dtype),
       "extra is not y's shape in x's dtype");
}

void check_arguments(const char* operation, const Shift& op) {
  const Fits fits(operation);
  const std::int64_t T = op.x.shape.elements();
  fits(op.x.dtype == DType::i32 && op.y.dtype == DType::i32 && op.y.shape.elements() == T, "x and y are not i32 [T]");
  fits(op.by >= 0, "it shifts towards the beginning only");
  fits.sequences(op.boundaries, op.length, T);
}

}  // namespace weft
