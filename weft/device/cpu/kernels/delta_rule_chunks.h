// What the gated delta rule's forward and backward share. n tokens in a chunk, r value heads of a key head. Of a chunk and
// value head, with S0 the state before it, D and E = from_start of its decay:
//   A_tj = beta_t D_tj (k_t . k_j), j < t;   Z_t = v_t - E_t S0^T k_t;   U = (I + A)^-1 beta Z
//   y_t = E_t S0^T q_t + sum over j <= t of P_tj u_j,   P_tj = D_tj (q_t . k_j)
//   state after it: carry S0 + sum_j to_end_j k_j (outer) u_j
// A task is a sequence and a key head: chunks one after the other. Keys and queries are in one matrix, the keys first,
// because most products want both.
#pragma once

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/chunks.h"
#include "weft/device/operations/recurrent.h"

namespace weft::WEFT_ISA {

struct DeltaShape {
  const DeltaRule& x;
  Chunks chunks;
  std::int64_t r, K, V;  // value heads of a key head, dim, value_dim

  explicit DeltaShape(const DeltaRule& op)
      : x(op),
        chunks(op.q.rows(), op.length, op.chunk, op.boundaries),
        r(op.heads / op.key_heads),
        K(op.dim),
        V(op.value_dim) {}

  template <class T>
  T* state(std::int64_t c, std::int64_t head) const {
    return static_cast<T*>(x.states.data) + (c * x.heads + head) * K * V;
  }
};

// One chunk of one key head, and what its value heads compute one after the other.
template <class T, class S>
class DeltaChunk {
 public:
  DeltaChunk(const DeltaShape& shape, std::int64_t key_head)
      : shape_(shape), key_head_(key_head), chunk_(shape.chunks.chunk) {}

  void carve(Carver& carver) {
    const std::int64_t K = shape_.K, V = shape_.V;
    decay_.carve(carver, chunk_);
    beta_ = carver.take<T>(chunk_);
    slope_ = carver.take<double>(chunk_);
    keys_ = carver.take<T>(2 * chunk_ * K);
    for (T** at : {&KK_, &QK_, &A_, &solve_, &P_}) *at = carver.take<T>(chunk_ * chunk_);
    before_ = carver.take<T>(2 * chunk_ * V);
    for (T** at : {&Z_, &R_, &U_}) *at = carver.take<T>(chunk_ * V);
  }

  void enter(std::int64_t c) {
    c_ = c;
    begin_ = shape_.chunks.begin(c);
    n_ = shape_.chunks.size(c);
    const std::int64_t K = shape_.K;
    queries_ = keys_ + n_ * K;
    copy_in<S>(shape_.x.k, begin_, n_, key_head_ * K, K, keys_);
    copy_in<S>(shape_.x.q, begin_, n_, key_head_ * K, K, queries_);
    lower_outer<T>(n_, K, {keys_, K}, {keys_, K}, KK_, chunk_);
    lower_outer<T>(n_, K, {queries_, K}, {keys_, K}, QK_, chunk_);
  }

  // Everything up to U and P, of one value head.
  void solve(std::int64_t head) {
    const std::int64_t K = shape_.K, V = shape_.V;
    set_gates(head);
    decay_.matrix(n_, 0, P_, chunk_);  // D, until A and P are made of it
    for (std::int64_t t = 0; t < n_; ++t) {
      const T *KK = KK_ + t * chunk_, *QK = QK_ + t * chunk_;
      T *A = A_ + t * chunk_, *P = P_ + t * chunk_;
      const T beta = beta_[t];
#pragma omp simd
      for (std::int64_t j = 0; j <= t; ++j) {
        A[j] = beta * P[j] * KK[j];
        P[j] *= QK[j];
      }
      for (std::int64_t j = t + 1; j < strip_end(t, n_); ++j) P[j] = 0;
    }
    invert();
    product<T>(2 * n_, V, K, Matrix<T>{keys_, K}, Matrix<T>{shape_.template state<T>(c_, head), V}, before_, V);
    for (std::int64_t t = 0; t < n_; ++t) {
      const S* v = row<S>(shape_.x.v, begin_ + t) + head * V;
      const T E = decay_.from_start[t], beta = beta_[t];
#pragma omp simd
      for (std::int64_t i = 0; i < V; ++i) {
        const T z = widen_to<T>(v[i]) - E * before_[t * V + i];
        Z_[t * V + i] = z;
        R_[t * V + i] = beta * z;
      }
    }
    lower_times<T>(n_, V, solve_, chunk_, {R_, V}, U_, V);
  }

 protected:
  void set_gates(std::int64_t head) {
    const DeltaRule& x = shape_.x;
    const double bias = static_cast<double>(static_cast<const T*>(x.dt_bias.data)[head]);
    rate_ = -std::exp(static_cast<double>(static_cast<const T*>(x.A_log.data)[head]));
    for (std::int64_t t = 0; t < n_; ++t) {
      const double raw = widen_to<double>(row<S>(x.a, begin_ + t)[head]) + bias;
      decay_.sums[t] = rate_ * softplus(raw);
      slope_[t] = sigmoid(raw);
      beta_[t] = static_cast<T>(sigmoid(widen_to<double>(row<S>(x.b, begin_ + t)[head])));
    }
    decay_.set(shape_.chunks, begin_, n_);
  }

  // solve_ = (I + A)^-1, row by row: row t is e_t - sum over j < t of A_tj row j. Zeros above, within a strip.
  void invert() {
    for (std::int64_t t = 0; t < n_; ++t) {
      T* __restrict to = solve_ + t * chunk_;
      const T* A = A_ + t * chunk_;
      for (std::int64_t j = 0; j < std::max(t, strip_end(t, n_)); ++j) to[j] = 0;
      std::int64_t j = 0;
      for (; j + 4 <= t; j += 4) {  // four rows of one strip: what is above their diagonals is zero
        const T *a = solve_ + j * chunk_, *b = a + chunk_, *c = b + chunk_, *d = c + chunk_;
        const T fa = A[j], fb = A[j + 1], fc = A[j + 2], fd = A[j + 3];
#pragma omp simd
        for (std::int64_t i = 0; i < j + 4; ++i) to[i] -= (fa * a[i] + fb * b[i]) + (fc * c[i] + fd * d[i]);
      }
      for (; j < t; ++j) {
        const T factor = A[j];
        const T* from = solve_ + j * chunk_;
#pragma omp simd
        for (std::int64_t i = 0; i <= j; ++i) to[i] -= factor * from[i];
      }
      to[t] = 1;
    }
  }

  const DeltaShape& shape_;
  std::int64_t key_head_, chunk_, c_ = 0, begin_ = 0, n_ = 0;
  Decay<T> decay_;
  double rate_ = 0;
  double* slope_;
  T *beta_, *keys_, *queries_ = nullptr, *KK_, *QK_, *A_, *solve_, *P_;
  T *before_, *Z_, *R_, *U_;  // before_: keys, then queries, times S0
};

}  // namespace weft::WEFT_ISA
