// What the tests of chunked recurrences share. A Case has dtype, length, chunk, documents and tokens(); Data(case, dtype)
// the inputs, all() of them in the order of the gradients; gradients(device, case, data, dy) runs forward and backward.
#pragma once

#include <cmath>

#include "tests/device/everywhere.h"
#include "weft/device/operations.h"

namespace weft {

template <class Case>
HostTensor documents_of(const Case& c) {
  if (!c.documents) return {};
  std::vector<std::int32_t> starts;
  for (std::int64_t t = 0, start = 0; t < c.tokens(); ++t) {
    if (t % c.length == 0 || t - start == (start % 2 == 0 ? 5 : 40) || t == c.chunk) start = t;
    starts.push_back(static_cast<std::int32_t>(start));
  }
  return HostTensor::integers(starts);
}

// Runs a backward whose `gradient` goes by op.store: written, added to itself, and written again.
template <class Op, class Backward>
void run_with_stores(Op& op, const HostTensor& gradient, const Backward& backward) {
  backward(op);
  const HostTensor once = gradient;
  op.store = Store::add;
  backward(op);
  for (std::int64_t i = 0; i < gradient.elements(); ++i)
    EXPECT_NEAR(gradient.at(i), 2 * once.at(i), 1e-6 * std::abs(once.at(i)));
  op.store = Store::write;
  backward(op);
}

// The gradients of a case are those of the same inputs in double, as sums of terms(i) numbers. columns: of y.
template <class Data, class Case, class Gradients, class Terms>
void expect_gradients_of_double(const Case& c, std::int64_t columns, const Gradients& gradients, const Terms& terms) {
  TestDevice one;
  Data d(c, c.dtype), exact(c, DType::f64);
  for (std::size_t i = 0; i < d.all().size(); ++i)
    for (std::int64_t e = 0; e < d.all()[i]->elements(); ++e) exact.all()[i]->set(e, d.all()[i]->at(e));
  const Shape shape{c.tokens(), columns};
  const HostTensor dy = HostTensor::normal(c.dtype, shape, "dy");
  const std::vector<HostTensor> want = gradients(one, c, exact, HostTensor::of(DType::f64, shape, dy.values()));
  everywhere([&](TestDevice& device) { return gradients(device, c, d, dy); },
             [&](const std::vector<HostTensor>& got) {
               for (std::size_t i = 0; i < got.size(); ++i) {
                 if (got[i].elements() == 0) continue;
                 SCOPED_TRACE(i);
                 expect_close(got[i], want[i].values(), terms(i));
               }
             });
}

}  // namespace weft
