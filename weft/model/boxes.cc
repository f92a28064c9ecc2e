#include "weft/model/boxes.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"

namespace weft {

BoxRuns::BoxRuns(const Shape& logical, const Box& box, const BoxPlace& place)
    : logical_(logical), box_(box), place_(place) {
  const int dims = logical.dims();
  WEFT_CHECK(box.extent.dims() == dims, "a box {} of a parameter {}", to_text(box.extent), to_text(logical));
  std::int64_t stride = 1;
  for (int d = dims - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    WEFT_CHECK(box.begin[i] >= 0 && box.extent[d] >= 0 && box.begin[i] + box.extent[d] <= logical[d],
               "a box {} from {} on in dim {} of a parameter {}", to_text(box.extent), box.begin[i], d,
               to_text(logical));
    strides_[i] = stride;
    stride *= logical[d];
  }
  for (int d = 1; d < dims; ++d) row_ *= box.extent[d];
  // The inner dims that the box spans make one run with the first that it does not span.
  outer_ = std::max(0, dims - 1);
  while (outer_ > 0 && box.extent[outer_] == logical[outer_]) --outer_;
  if (place.rows_together > 0 && dims > 0) {
    WEFT_CHECK(box.extent[0] % place.rows_together == 0, "{} rows in blocks of {}", box.extent[0], place.rows_together);
    if (outer_ == 0) outer_ = 1;  // a row is a run
  }
  for (int d = outer_; d < dims; ++d) run_length_ *= box.extent[d];
  runs_ = run_length_ == 0 ? 0 : box.extent.elements() / run_length_;
}

BoxRun BoxRuns::operator[](std::int64_t index) const {
  BoxRun run;
  run.count = run_length_;
  std::int64_t rest = index;
  for (int d = logical_.dims() - 1; d >= 0; --d) {
    const auto i = static_cast<std::size_t>(d);
    std::int64_t at = box_.begin[i];
    if (d < outer_) {
      at += rest % box_.extent[d];
      rest /= box_.extent[d];
    }
    run.logical += at * strides_[i];
  }
  const std::int64_t element = index * run_length_;  // of the box, row-major
  if (place_.rows_together == 0) {
    run.tensor = place_.offset + element;
  } else {
    const std::int64_t block = place_.rows_together * row_;
    run.tensor = place_.offset + element / block * place_.block_stride + element % block;
  }
  return run;
}

void BoxRuns::within(std::int64_t first, std::int64_t count, const std::function<void(const BoxRun&)>& visit) const {
  // The first run that ends after `first`: runs are in the order of the logical parameter.
  std::int64_t low = 0, high = runs_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if ((*this)[middle].logical + run_length_ > first)
      high = middle;
    else
      low = middle + 1;
  }
  for (std::int64_t i = low; i < runs_; ++i) {
    BoxRun run = (*this)[i];
    if (run.logical >= first + count) return;
    const std::int64_t skipped = std::max<std::int64_t>(0, first - run.logical);
    run.logical += skipped;
    run.tensor += skipped;
    run.count = std::min(run.count - skipped, first + count - run.logical);
    visit(run);
  }
}

namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

double number_at(const HostTensor& tensor, std::int64_t element) {
  switch (tensor.dtype) {
    case DType::f32:
      return static_cast<double>(load<float>(tensor.at(element)));
    case DType::f64:
      return load<double>(tensor.at(element));
    case DType::bf16:
      return static_cast<double>(load<bfloat16>(tensor.at(element)));
    default:
      WEFT_CHECK(false, "numbers of {}", name_of(tensor.dtype));
  }
}

void set_number(HostTensor& tensor, std::int64_t element, double number) {
  const auto store = [&](auto value) { std::memcpy(tensor.at(element), &value, sizeof(value)); };
  switch (tensor.dtype) {
    case DType::f32:
      return store(static_cast<float>(number));
    case DType::f64:
      return store(number);
    case DType::bf16:
      return store(bfloat16(static_cast<float>(number)));
    default:
      WEFT_CHECK(false, "numbers of {}", name_of(tensor.dtype));
  }
}

}  // namespace weft
